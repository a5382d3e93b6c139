"""The runs that there were, and how often each row ended how, as plain text with aligned columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.model import BLOCKED, FAILED, PASSED
from ci_tasks.report.table import Record, columns, why

_SHOWN = (PASSED, FAILED, BLOCKED)


def listed(records: Sequence[Record]) -> list[str]:
    """One line a run; `started` is when, in words."""
    head = ("RUN", "STATUS", "ROW", "HOST", "STARTED", "REASON")
    return columns([head, *([_word(cell) for cell in _line(record)] for record in records)])


def tallied(tallies: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for a row on a host. Ends without a column of their own are in OTHER; TOOK and WAITED are
    medians."""
    head = ("LABEL", "ROW", "HOST", "RUNS", "PASSED", "FAILED", "BLOCKED", "OTHER", "TOOK", "WAITED", "")
    return columns([head, *map(_tally, tallies)])


def _line(record: Record) -> tuple[Any, ...]:
    said = why(record)
    reason = f"{said}; its files are gone" if said else "its files are gone"
    return (
        record["id"],
        record["status"],
        record["row"],
        record["host"],
        record["started"],
        reason if record.get("files_gone") else said,
    )


def _tally(tally: Mapping[str, Any]) -> tuple[str, ...]:
    counts = tally["counts"]
    other = sum(count for status, count in counts.items() if status not in _SHOWN)
    return (
        tally["label"],
        tally["row"],
        tally["host"],
        str(tally["runs"]),
        *(str(counts.get(status, 0)) for status in _SHOWN),
        str(other),
        _seconds(tally["seconds"]),
        _seconds(tally["queued"]),
        "flaky" if tally["flaky"] else "",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _word(value: Any) -> str:
    """Names may hold line breaks, and what is unknown has none."""
    return " ".join(str(value).split()) if value is not None else "-"
