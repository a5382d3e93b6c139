"""The runs that there were, and how often each row ended how, as plain text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.records import BLOCKED, FAILED, PASSED, RowTally, RunRecord
from ci_tasks.report.table import cause_and_reason, columns

_SHOWN = (PASSED, FAILED, BLOCKED)


def listed(records: Sequence[RunRecord], started: Sequence[str]) -> list[str]:
    """One line a run; `started` is when each did, in words."""
    head = ("RUN", "STATUS", "ROW", "HOST", "STARTED", "REASON")
    body = [(r.id, r.status, r.row, r.host, at, _reason(r)) for r, at in zip(records, started, strict=True)]
    return columns([head, *([_word(cell) for cell in line] for line in body)])


def tallied(tallies: Sequence[RowTally]) -> list[str]:
    """One line for a row on a host. Ends without a column of their own are in OTHER; TOOK and WAITED are
    medians."""
    head = ("LABEL", "ROW", "HOST", "RUNS", "PASSED", "FAILED", "BLOCKED", "OTHER", "TOOK", "WAITED", "")
    return columns([head, *map(_tally, tallies)])


def _reason(record: RunRecord) -> str:
    return "; ".join(filter(None, [cause_and_reason(record), "its files are gone" if record.files_gone else ""]))


def _tally(tally: RowTally) -> tuple[str, ...]:
    counts = tally.counts
    other = sum(count for status, count in counts.items() if status not in _SHOWN)
    return (
        tally.label,
        tally.row,
        tally.host,
        str(tally.runs),
        *(str(counts.get(status, 0)) for status in _SHOWN),
        str(other),
        _seconds(tally.seconds),
        _seconds(tally.queued),
        "flaky" if tally.flaky else "",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _word(value: str | None) -> str:
    """Names may hold line breaks, and what is unknown has none."""
    return " ".join(value.split()) if value is not None else "-"
