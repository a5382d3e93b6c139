"""The runs that there were, and how often each row ended how, as plain text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.records import BLOCKED, FAILED, PASSED, RowTally, RunRecord
from ci_tasks.report.layout import columns
from ci_tasks.report.table import cause_and_reason, reasons_once
from ci_tasks.results.rates import at_least, rate_and_interval

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
_SHOWN = (PASSED, FAILED, BLOCKED)
_WHOLE = 100  # seconds, from which on tenths say nothing
_OPTIONAL = ("BLOCKED", "OTHER", "TOOK", "WAITED")


def listed(records: Sequence[RunRecord], ages: Sequence[str], width: int | None = None) -> list[str]:
    """One line a run; `ages` say how long ago each started."""
    head = ("RUN", "STATUS", "HOST", "AGE", "ROW", "REASON")
    body = [(r.id, r.status, r.host, age, r.row or "-", _reason(r)) for r, age in zip(records, ages, strict=True)]
    return columns(reasons_once([tuple(map(_word, line)) for line in body]), width, head=head, names=[4])


def age(seconds: float) -> str:
    """In the largest unit of which it has two, such as `90 min`."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def tallied(tallies: Sequence[RowTally], width: int | None = None) -> list[str]:
    """One line for a row on a host. Ends without a column of their own are in OTHER; TOOK and WAITED are
    medians. A column that is empty for all rows is left out."""
    head = ("LABEL", "ROW", "HOST", "PASSED", "FAILED", "BLOCKED", "OTHER", "TOOK", "WAITED", "FAILURE RATE (95 %)")
    body = [*map(_tally, tallies)]
    kept = [at for at, name in enumerate(head) if name not in _OPTIONAL or {line[at] for line in body} - {"0", "-"}]
    return columns([[line[at] for at in kept] for line in body], width, head=[head[at] for at in kept], names=[0, 1])


def _reason(record: RunRecord) -> str:
    return "; ".join(filter(None, [cause_and_reason(record), "its files are gone" if record.files_gone else ""]))


def _tally(tally: RowTally) -> tuple[str, ...]:
    counts = tally.counts
    other = sum(count for status, count in counts.items() if status not in _SHOWN)
    return (
        tally.label,
        tally.row,
        tally.host,
        *(str(counts.get(status, 0)) for status in _SHOWN),
        str(other),
        _seconds(tally.seconds),
        _seconds(tally.queued),
        _rate(tally),
    )


def _rate(tally: RowTally) -> str:
    """The share of failures, and `flaky` where one tree did both."""
    failed, passed = tally.counts.get(FAILED, 0), tally.counts.get(PASSED, 0)
    if failed and not passed:
        return at_least(failed, failed)
    rate = rate_and_interval(failed, failed + passed)
    return f"{rate}, flaky" if tally.flaky else rate


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s" if value >= _WHOLE else f"{value:.1f} s"


def _word(value: str | None) -> str:
    """Names may hold line breaks, and what is unknown has none."""
    return " ".join(value.split()) if value is not None else "-"
