"""The line that verl's console logger writes for each step."""

from __future__ import annotations

from ci_tasks.registry import MetricFormat


def read(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The step and its metrics; None for another line."""
    from ci_tasks.features.verl.judge import log_patterns as lines  # no line but verl's needs its expressions

    match = lines.STEP.search(lines.split(lines.plain(line))[1])
    return (int(match[1]), lines.metrics(match[2])) if match else None


FORMAT = MetricFormat(rb"step:\d+ - ", read)
