"""What the last line of a log says of a job that runs; of a line of metrics how far it is and how it does, in short."""

from __future__ import annotations

import os
import re

from ci_tasks.agent.files import open_file
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.logs.lines import segments, shown, visible
from ci_tasks.logs.metrics import slime_metrics
from ci_tasks.registry import MetricFormat, metric_formats

_STEP = re.compile(rb"(step|rollout|eval)[ :](\d+)(?=:| -)")
# What a person asks for first. A minimum says less than a mean.
_HEADLINE = tuple(map(re.compile, (r"(?i)reward(?!.*(?:max|min|std))", r"(?i)\bacc", r"(?i)score/mean", r"(?i)loss$")))
_ACTOR = re.compile(r"^\(\w+ pid=\d+(?:, ip=[\w.:]+)?\) ?")
_ENDS = b"##[endgroup]", b"::endgroup::"  # of groups in GitHub's log
_TAIL = 1 << 14  # bytes: a line of metrics alone may have several thousand


def last_line(run: RunDir) -> str:
    """The last line of a log that says something, safe for a terminal; a line of metrics in short."""
    try:
        with open_file(run.log) as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    formats = metric_formats()
    texts = (line_summary(line, formats) for line in reversed(lines) if not line.startswith(_ENDS))
    return next((text for text in texts if any(char.isalnum() for char in text)), "")


def line_summary(line: bytes, formats: tuple[MetricFormat, ...] = ()) -> str:
    """The line for a person who looks at many: metrics in short, without the actor that Ray puts in front."""
    if summary := metrics_summary(line, formats):
        return summary
    text = shown(line)
    return _ACTOR.sub("", text) or text


def metrics_summary(line: bytes, formats: tuple[MetricFormat, ...] = ()) -> str:
    """`step 12, reward 0.43` of a line of metrics; "" if it is none. `formats` are further ways to log them."""
    is_likely = b"{" in line or b" - " in line  # most lines have neither, and what follows costs more
    match = _STEP.search(line) if is_likely else None
    values = _values(line, formats) if match else {}
    if match is None or not values:
        return ""
    step = f"{match[1].decode()} {int(match[2])}"
    named = [name for pattern in _HEADLINE for name in values if pattern.search(name)]
    name = named[0] if named else next(iter(values))
    is_told = named or len(values) == 1
    word = next((part for part in reversed(name.split("/")) if not part.startswith("mean")), name)
    return f"{step}, {word} {values[name]:.4g}" if is_told else f"{step}, {len(values)} metrics"


def _values(line: bytes, formats: tuple[MetricFormat, ...]) -> dict[str, float]:
    if parsed := slime_metrics(visible(segments(line)[-1]).encode()):
        return parsed[1]
    return next((match[1] for metric_format in formats if (match := metric_format.read(line))), {})
