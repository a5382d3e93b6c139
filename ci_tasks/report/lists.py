"""The tables of plans and of what ran: `plan`, `runs` and `runs --flakes`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ci_tasks.errors import one_line, some
from ci_tasks.records import BLOCKED, FAILED, PASSED, PlanEntry, RowTally, RunRecord
from ci_tasks.report.results import cause_and_reason, deviations, reasons_once
from ci_tasks.report.table import Table, duration, paragraph
from ci_tasks.results.rates import rate_and_interval

_AGES = (("d", 86400), ("h", 3600), ("min", 60))
_COUNTED = (PASSED, FAILED, BLOCKED)


def plans(entries: Sequence[PlanEntry], width: int | None = None, *, here: bool = True) -> list[str]:
    """One line for each plan, at least one; then what is missing on the host, then the deviations. `here`: the plans
    are for this machine."""
    directory = entries[0].run_dir.rpartition("/")[0]
    body = [(p.row, str(p.gpus), f"bash {shlex.quote(p.run_dir.rpartition('/')[2] + '/run.sh')}") for p in entries]
    columns = 3 if here else 2
    table = Table([row[:columns] for row in body], ("ROW", "GPUS", "RUN BY HAND")[:columns])
    lines = [f"{'cd' if here else 'plans:'} {shlex.quote(directory)}", "", *table.text(width)]
    if secrets := sorted({name for p in entries for name in p.secrets}):
        lines += ["", f"Secrets, from the environment: {', '.join(secrets)}"]
    lacking: dict[str, list[str]] = {}
    for p in entries:
        if p.lacks:
            lacking.setdefault(f"{p.host} lacks {'; '.join(p.lacks)}", []).append(p.row)
    lines += ["", "Cannot run here:"] if lacking else []
    for what, rows in lacking.items():
        named = "all rows" if 1 < len(rows) == len(entries) else some(rows, 2)
        lines += paragraph(f"{named}: {what}", width, "  ")
    return [*lines, "", *deviations(entries, width)]


def runs(records: Sequence[RunRecord], ages: Sequence[str], width: int | None = None) -> list[str]:
    """One line a run; `ages` say how long ago each started."""
    body = []
    for r, old in zip(records, ages, strict=True):
        reason = "; ".join(filter(None, [cause_and_reason(r), "its files were removed" if r.files_gone else ""]))
        body.append((r.id, r.status, r.host or "-", old, one_line(r.row) or "-", reason))
    return Table(reasons_once(body), ("RUN", "STATUS", "HOST", "AGE", "ROW", "REASON")).text(width)


def age(seconds: float) -> str:
    """In the largest unit that it has two of, such as `90 min`."""
    return next((f"{seconds // size:.0f} {unit}" for unit, size in _AGES if seconds >= 2 * size), f"{seconds:.0f} s")


def flakes(tallies: Sequence[RowTally], width: int | None = None) -> list[str]:
    """One line for a row on a host. Ends without a column of their own are in OTHER; TOOK and WAITED are medians. A
    column that says nothing of any row is left out."""
    head = ("LABEL", "ROW", "HOST", "PASSED", "FAILED", "BLOCKED", "OTHER", "TOOK", "WAITED", "FAILURE RATE (95 %)")
    body = [*map(_tally, tallies)]
    told = [at for at, name in enumerate(head) if name in head[:5] or {line[at] for line in body} - {"0", "-"}]
    return Table([[line[at] for at in told] for line in body], [head[at] for at in told]).text(width)


def _tally(tally: RowTally) -> tuple[str, ...]:
    counts = [str(tally.counts.get(status, 0)) for status in _COUNTED]
    other = sum(count for status, count in tally.counts.items() if status not in _COUNTED)
    times = ("-" if seconds is None else duration(seconds) for seconds in (tally.seconds, tally.queued))
    failed, passed = tally.counts.get(FAILED, 0), tally.counts.get(PASSED, 0)
    rate = rate_and_interval(failed, failed + passed) + (", flaky" if tally.flaky else "")  # one tree did both
    return (tally.label, tally.row, tally.host, *counts, str(other), *times, rate)
