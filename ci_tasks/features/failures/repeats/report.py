"""Repetitions of a label's rows as lines: one while they go on, a table with what failed at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.errors import counted, printable, some
from ci_tasks.features.failures.repeats.outcomes import OutcomeCounts
from ci_tasks.report.table import Table
from ci_tasks.results.rates import at_least, percent, rate_and_interval

_SHORT = 70


@dataclass(frozen=True)
class Example:
    """One repetition of many alike: the line that explains it, and its log, "" where there is none."""

    line: str
    log: str


@dataclass(frozen=True)
class RepeatedRow:
    """A row's repetitions. `stopped` says why they ended before all that was asked for, "" where they did not;
    `examples` are by way of failing, or by status where a repetition was no evidence."""

    row: str
    counts: OutcomeCounts
    stopped: str = ""
    examples: Mapping[str, Example] = field(default_factory=dict)


def announcement(limit: int, until_fail: bool, checkout: Checkout) -> str:
    """The line before the first repetition."""
    often = counted(limit, "time")
    how = f"until a row fails, at most {often}" if until_fail else f"each row {often}, or until the answer is clear"
    return f"repeating {how}: {checkout.title}, tree {checkout.tree[:12]}"


def progress(number: int, ended: Mapping[str, str], so_far: Sequence[OutcomeCounts]) -> str:
    """The line after repetition `number`: how its rows ended (row → status or way of failing), and the count up to now.

    `repetition 2: RuntimeError: the cause#3f9a1c; so far 1 passed, 1 failed`, with rows' names where several ran.
    """
    passed = sum(how == "passed" for how in ended.values())
    others = [how if len(ended) == 1 else f"{row}: {how}" for row, how in ended.items() if how != "passed"]
    parts = [f"{passed} passed" if len(ended) > 1 else "passed"] if passed else []
    parts += [some(others, 2)] if others else []
    return printable(f"repetition {number}: {', '.join(parts)}; so far {_totals(so_far)}")


def short(failure_kind: str) -> str:
    """A way of failing on one line: a long signature loses its middle, not the end that tells it from others."""
    line = " ".join(failure_kind.split())
    keep = (_SHORT - 1) * 2 // 3
    return line if len(line) <= _SHORT else f"{line[:keep]}…{line[keep + 1 - _SHORT :]}"


def results(rows: Sequence[RepeatedRow], needed: int, width: int | None = None) -> list[str]:
    """The end: a line a row, then each row's ways of failing with a log, then what was not counted. `needed` is how
    many equal failures are enough to name a rate."""
    head = ("RESULT", "ROW", "PASSED", "FAILED", "FAILURE RATE (95 %)", "WHY")
    body = [
        (
            row.counts.word,
            row.row,
            str(row.counts.passed),
            str(row.counts.failed),
            rate_and_interval(row.counts.failed, row.counts.conclusive),
            _why(row, needed),
        )
        for row in rows
    ]
    lines = Table(body, head).text(width)
    for row in rows:
        lines += _failures(row)
    inconclusive = [line for row in rows for line in _uncounted(row)]
    return [*lines, *(["", *Table(inconclusive).text(width)] if inconclusive else [])]


def summary(rows: Sequence[RepeatedRow]) -> str:
    """`1 flaky, 4 passes` for the last line."""
    words = Counter(row.counts.word for row in rows)
    return ", ".join(f"{count} {word}" for word, count in words.items()) or "no row ran"


def evidence(counts: OutcomeCounts, needed: int) -> str:
    """What a row's word rests on."""
    ways, (_, high) = len(counts.failures), counts.interval
    if not counts.conclusive:
        return "no repetition says anything about the code"
    if not counts.failed:
        return f"0 of {counts.conclusive} failed: the true rate is below {percent(high)} (95 %)"
    if ways > 1:
        return f"{'passes, and ' if counts.passed else ''}fails in {ways} ways, on one tree"
    if counts.passed:
        return "passes and fails, on one tree"
    alike = f"{counts.failed} of {counts.conclusive} failed in one way"
    if counts.failed < needed:
        return f"{alike}: more repeats ({needed} such are clear)"
    return f"{alike}: it {at_least(counts.failed, counts.conclusive)} (95 %)"


def _why(row: RepeatedRow, needed: int) -> str:
    return evidence(row.counts, needed) + (f"; stopped: {row.stopped}" if row.stopped else "")


def _failures(row: RepeatedRow) -> list[str]:
    if not row.counts.failures:
        return []
    lines = ["", f"failures of {row.row}:"]
    for failure_kind, count in row.counts.failures.items():
        lines.append(f"  {count} × {' '.join(failure_kind.split())}")
        example = row.examples.get(failure_kind)
        if example and example.line:
            lines.append(f"      {' '.join(example.line.split())}")
        if example and example.log:
            lines.append(f"      log: {example.log}")
    return [printable(line) for line in lines]


def _uncounted(row: RepeatedRow) -> list[tuple[str, str]]:
    lines = []
    for status, count in row.counts.inconclusive.items():
        example = row.examples.get(status)
        why = f", such as: {' '.join(example.line.split())}" if example and example.line else ""
        lines.append((f"not counted of {row.row}:", f"{count} {status}{why}"))
    return lines


def _totals(so_far: Sequence[OutcomeCounts]) -> str:
    parts = [f"{sum(counts.passed for counts in so_far)} passed", f"{sum(counts.failed for counts in so_far)} failed"]
    inconclusive = sum(sum(counts.inconclusive.values()) for counts in so_far)
    return ", ".join([*parts, *([f"{inconclusive} not counted"] if inconclusive else [])])
