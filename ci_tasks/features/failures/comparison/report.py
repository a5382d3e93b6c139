"""A comparison as text: what it will take, a line a run, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.errors import counted, printable
from ci_tasks.features.failures.comparison.decision import BLOCKED, BROKEN, CANNOT_TELL, FINE, FIXED, FLAKY, YOURS
from ci_tasks.features.failures.comparison.metrics import LEAST_RUNS
from ci_tasks.features.failures.comparison.result import ComparisonResult, RowComparison, SideResult
from ci_tasks.features.failures.repeats.report import short
from ci_tasks.records import PASSED, RunRecord
from ci_tasks.report.table import Table, duration, paragraph

_DECIDED = (YOURS, FIXED)
_NO_RISE = (BROKEN, FLAKY, FINE)


def announcement(
    rows: Sequence[str], yours: str, base: str, host: str, max_runs: int, seconds: float | None, earlier: int
) -> list[str]:
    """What is going to happen, and the most that it may cost."""
    what = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows, those that fail"
    each = f"about {duration(seconds)} each" if seconds is not None else "no earlier run says how long one takes"
    lines = [
        f"comparing {what} on {host}",
        f"yours: {yours}",
        f"base: {base}",
        f"at most {max_runs} new runs{' of a row' if len(rows) > 1 else ''}, {each}",
    ]
    return [
        printable(line)
        for line in [*lines, *([f"of these trees, the history has {counted(earlier, 'run')}"] if earlier else [])]
    ]


def progress(side: str, record: RunRecord, *, several: bool) -> str:
    """The line of one run."""
    how = record.status if record.status == PASSED else f"{record.status}: {short(record.reason)}"
    row = f"{record.row}: " if several else ""
    seconds = f", {duration(record.timings.seconds)}" if record.timings.seconds is not None else ""
    return printable(f"{side:<5}  {row}{how} [{record.id}{seconds}]")


def result_lines(result: ComparisonResult, width: int | None = None) -> list[str]:
    """The end: both rates of each row, what differs, and the word."""
    head = ("RESULT", "ROW", "YOURS FAILED", "BASE FAILED", "WHY")
    body = [(row.verdict, row.row, _failed(row.yours), _failed(row.base), row.why) for row in result.rows]
    lines = Table(body, head).text(width)
    for row in result.rows:
        lines += [line for text in _details(row, several=len(result.rows) > 1) for line in paragraph(text, width)]
    return [*map(printable, lines), "", *map(printable, paragraph(_last_line(result), width))]


def _failed(side: SideResult) -> str:
    return f"{side.failed} of {side.runs} ({100 * side.low:.0f}–{100 * side.high:.0f} %)" if side.runs else "-"


def _details(row: RowComparison, *, several: bool) -> list[str]:
    lines = []
    for name, side in (("yours", row.yours), ("base", row.base)):
        ways = "; ".join(f"{count} × {short(way)}" for way, count in side.failures.items())
        counted = "; ".join(f"{count} {status}, not counted" for status, count in side.inconclusive.items())
        if ways or counted:
            lines.append(f"failures of {name}: {'; '.join(filter(None, [ways, counted]))}")
    if row.way and len({*row.yours.failures, *row.base.failures}) > 1:
        lines.append(f"what decides: {short(row.way)}")
    if row.yours.gpus or row.base.gpus:
        on = {name: " | ".join(side.gpus) for name, side in (("yours", row.yours), ("base", row.base)) if side.gpus}
        same = len(set(on.values())) == 1 and len(on) > 1
        gpus = next(iter(on.values())) if same else "; ".join(f"{name} {gpus}" for name, gpus in on.items())
        lines.append(f"GPUs: {gpus}{'' if same or len(on) < 2 else ': the sides ran on different ones'}")
    if row.yours.images and row.base.images and row.yours.images != row.base.images:
        lines.append(f"images differ: yours {', '.join(row.yours.images)}; base {', '.join(row.base.images)}")
    if row.yours.runs and row.base.runs:
        lines += _metrics(row)
    lines += [f"the workflows differ in {difference}" for difference in row.differs]
    return [f"{row.row}: {line}" if several else line for line in lines]


def _metrics(row: RowComparison) -> list[str]:
    if not row.metrics.compared:
        return [f"metrics: not seen; it takes {LEAST_RUNS} runs of each side that pass and log them"]
    if not row.metrics.moved:
        return [f"metrics: none of {row.metrics.compared} moved beyond the scatter of the runs"]
    return [
        f"metric {change.name} moved: base {change.base:.6g}, yours {change.yours:.6g} ({_chance(change.p)})"
        for change in row.metrics.moved
    ]


def _chance(p: float) -> str:
    return f"p {p:.2g}" if p else "the same in all runs of a side"


def _last_line(result: ComparisonResult) -> str:
    """The word, and what it promises."""
    error = f"{100 * result.error:.0f} %"
    promise = ""
    if result.verdict in _DECIDED:
        promise = f"; wrong in at most {error} of comparisons"
    elif result.verdict in _NO_RISE:
        points = f"{100 * result.rise:.0f} points"
        promise = f"; a failure rate that rose by {points} or more is overlooked in at most {error} of comparisons"
    elif result.verdict == CANNOT_TELL:
        promise = "; the same command goes on from here, with --max-runs for more"
    elif result.verdict == BLOCKED:
        promise = "; nothing was shown about the code: `ci-tasks doctor` says what the hosts lack"
    return f"{result.verdict}{promise}"
