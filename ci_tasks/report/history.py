"""The runs that there were, and how often each row ended how, as plain text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.records import BLOCKED, FAILED, PASSED, RowTally, RunRecord
from ci_tasks.report.layout import columns
from ci_tasks.report.table import cause_and_reason, reasons_once

_SHOWN = (PASSED, FAILED, BLOCKED)


def listed(records: Sequence[RunRecord], started: Sequence[str], width: int | None = None) -> list[str]:
    """One line a run; `started` is when each did, in words."""
    head = ("RUN", "STATUS", "HOST", "STARTED", "ROW", "REASON")
    body = [(r.id, r.status, r.host, at, r.row, _reason(r)) for r, at in zip(records, started, strict=True)]
    return columns(reasons_once([tuple(map(_word, line)) for line in body]), width, head=head, names=[4])


def tallied(tallies: Sequence[RowTally], width: int | None = None) -> list[str]:
    """One line for a row on a host. Ends without a column of their own are in OTHER; TOOK and WAITED are
    medians."""
    head = ("LABEL", "ROW", "HOST", "RUNS", "PASSED", "FAILED", "BLOCKED", "OTHER", "TOOK", "WAITED", "")
    return columns([*map(_tally, tallies)], width, head=head, names=[0, 1])


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
