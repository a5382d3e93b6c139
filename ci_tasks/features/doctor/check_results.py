"""What an examined host showed: results as the lines of `doctor`'s table."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import one_line
from ci_tasks.report.table import Table

# A fault would block or break a row; a warning may; unknown is what could not be queried.
OK, WARNING, FAULT, UNKNOWN = "ok", "warning", "fault", "unknown"
# From the way in to the way out: what breaks everything stands above what it breaks.
_ORDER = (
    *("SSH", "Slurm", "Python", "git", "bash", "clock"),
    *("runtime", "docker", "podman", "init", "NVIDIA runtime", "image"),
    *("GPUs", "GPU health", "Xid", "GPU memory", "GPU locks", "accounting"),
    *("disk", "/dev/shm", "hub"),
)


@dataclass(frozen=True)
class CheckResult:
    """One result of a host's examination; `next_step` is empty where nothing has to be done."""

    topic: str
    status: str
    text: str
    next_step: str = ""


def ok(topic: str, text: str) -> CheckResult:
    return CheckResult(topic, OK, text)


def warning(topic: str, text: str, next_step: str = "") -> CheckResult:
    return CheckResult(topic, WARNING, text, next_step)


def fault(topic: str, text: str, next_step: str) -> CheckResult:
    return CheckResult(topic, FAULT, text, next_step)


def unknown(topic: str, text: str, next_step: str = "") -> CheckResult:
    return CheckResult(topic, UNKNOWN, text, next_step)


def lines(host: str, results: Sequence[CheckResult], width: int | None = None) -> list[str]:
    """The host's name, and a line for each result, with its next step below."""
    cells: list[tuple[str, ...]] = []
    topic = ""
    for result in sorted(results, key=table_position):
        cells.append((f"  {result.status}", result.topic if result.topic != topic else "", one_line(result.text)))
        topic = result.topic
        if result.next_step:
            cells.append(("", "", f"→ {one_line(result.next_step)}"))
    return [host, *Table(cells).text(width)]


def table_position(result: CheckResult) -> int:
    """Where a result stands among others, whatever order they came in."""
    return _ORDER.index(result.topic)


def summary(results: Sequence[CheckResult]) -> str:
    """`2 faults, 1 warning`, for the last line."""
    counts = {status: sum(result.status == status for result in results) for status in (FAULT, WARNING, UNKNOWN)}
    plural = {FAULT: "faults", WARNING: "warnings", UNKNOWN: "unknown"}
    parts = [f"{count} {status if count == 1 else plural[status]}" for status, count in counts.items() if count]
    return ", ".join(parts) or "no fault"
