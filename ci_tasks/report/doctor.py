"""What an examined host showed: findings as the lines of `doctor`'s table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.report.table import columns

# A fault would block or break a row; a warning may; unknown is what could not be asked.
OK, WARNING, FAULT, UNKNOWN = "ok", "warning", "fault", "unknown"
# From the way in to the way out: what breaks everything stands above what it breaks.
_ORDER = (
    *("SSH", "Slurm", "Python", "git", "bash", "clock"),
    *("runtime", "docker", "podman", "NVIDIA runtime", "image"),
    *("GPUs", "GPU health", "Xid", "GPU memory", "GPU locks", "accounting"),
    *("disk", "/dev/shm", "hub"),
)


@dataclass(frozen=True)
class Finding:
    """One fact about a host, and what to do about it; `next_step` is empty where nothing has to be done."""

    topic: str
    status: str
    text: str
    next_step: str = ""


def lines(host: str, findings: Sequence[Finding]) -> list[str]:
    """The host's name, and a line a finding; what to do stands below its finding."""
    cells: list[tuple[str, ...]] = []
    topic = ""
    for finding in sorted(findings, key=place):
        cells.append((finding.status, finding.topic if finding.topic != topic else "", _line(finding.text)))
        topic = finding.topic
        if finding.next_step:
            cells.append(("", "", f"→ {_line(finding.next_step)}"))
    return [host, *(f"  {line}" for line in columns(cells))]


def place(finding: Finding) -> int:
    """Where a finding stands among others, whatever order they came in."""
    return _ORDER.index(finding.topic)


def summary(findings: Sequence[Finding]) -> str:
    """`2 faults, 1 warning`, for the last line."""
    counts = {status: sum(finding.status == status for finding in findings) for status in (FAULT, WARNING, UNKNOWN)}
    plural = {FAULT: "faults", WARNING: "warnings", UNKNOWN: "unknown"}
    said = [f"{count} {status if count == 1 else plural[status]}" for status, count in counts.items() if count]
    return ", ".join(said) or "no fault"


def _line(text: str) -> str:
    """What a program said in several lines would break the table."""
    return " ".join(text.split())
