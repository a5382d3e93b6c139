"""Repetitions of a label's rows as lines: one while they go on, a table with what failed at the end.

The counts come from `judge.repeats`, which this room may not import; `Counts` says what is read of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ci_tasks.errors import printable
from ci_tasks.model import Checkout
from ci_tasks.report.table import columns, some

_SHORT = 70


class Counts(Protocol):
    """See ci_tasks.judge.repeats.Tally."""

    @property
    def passed(self) -> int: ...

    @property
    def failures(self) -> Mapping[str, int]: ...

    @property
    def uncounted(self) -> Mapping[str, int]: ...

    @property
    def failed(self) -> int: ...

    @property
    def ran(self) -> int: ...

    @property
    def interval(self) -> tuple[float, float]: ...

    @property
    def word(self) -> str: ...


@dataclass(frozen=True)
class Example:
    """One repetition of many alike: the line that explains it, and its log, "" where there is none."""

    line: str
    log: str


@dataclass(frozen=True)
class Repeated:
    """A row's repetitions. `stopped` says why they ended before all that was asked for, "" where they did not;
    `examples` are by way of failing, or by status where a repetition was no evidence."""

    row: str
    counts: Counts
    stopped: str = ""
    examples: Mapping[str, Example] = field(default_factory=dict)


def announcement(limit: int, until_fail: bool, checkout: Checkout) -> str:
    """The line before the first repetition."""
    what = f"commit {checkout.commit[:12]}"
    if checkout.dirty:
        what += f", {len(checkout.dirty)} uncommitted file{'' if len(checkout.dirty) == 1 else 's'}"
    often = f"{limit} time{'' if limit == 1 else 's'}"
    how = f"until a row fails, at most {often}" if until_fail else f"each row {often}, or until the answer is clear"
    return f"repeating {how}: {what}, tree {checkout.tree[:12]}"


def progress(number: int, ended: Mapping[str, str], so_far: Sequence[Counts]) -> str:
    """The line after repetition `number`: how its rows ended (row → status or way of failing), and the count up to now.

    `repetition 2: RuntimeError: the cause#3f9a1c; so far 1 passed, 1 failed`, with rows' names where several ran.
    """
    passed = sum(how == "passed" for how in ended.values())
    others = [how if len(ended) == 1 else f"{row}: {how}" for row, how in ended.items() if how != "passed"]
    said = [f"{passed} passed" if len(ended) > 1 else "passed"] if passed else []
    said += [some(others)] if others else []
    return printable(f"repetition {number}: {', '.join(said)}; so far {_totals(so_far)}")


def short(way: str) -> str:
    """A way of failing on one line: a long signature loses its middle, not the end that tells it from others."""
    line = " ".join(way.split())
    keep = (_SHORT - 1) * 2 // 3
    return line if len(line) <= _SHORT else f"{line[:keep]}…{line[keep + 1 - _SHORT :]}"


def results(rows: Sequence[Repeated], needed: int) -> list[str]:
    """The end: a line a row, then each row's ways of failing with a log, then what was not counted. `needed` is how
    many equal failures are called deterministic."""
    head = ("RESULT", "ROW", "PASSED", "FAILED", "FAILURE RATE (95 %)", "WHY")
    body = [
        (one.counts.word, one.row, str(one.counts.passed), str(one.counts.failed), _rate(one.counts), _why(one, needed))
        for one in rows
    ]
    lines = columns([head, *body])
    for one in rows:
        lines += _failures(one)
    uncounted = [line for one in rows for line in _uncounted(one)]
    return [*lines, *(["", *columns(uncounted)] if uncounted else [])]


def summary(rows: Sequence[Repeated]) -> str:
    """`1 flaky, 4 passes` for the last line."""
    words = Counter(one.counts.word for one in rows)
    return ", ".join(f"{count} {word}" for word, count in words.items()) or "no row ran"


def evidence(counts: Counts, needed: int) -> str:
    """What a row's word rests on."""
    ways, (low, high) = len(counts.failures), counts.interval
    if not counts.ran:
        return "no repetition says anything about the code"
    if not counts.failed:
        return f"0 of {counts.ran} failed: the true rate is below {_percent(high)} (95 %)"
    if ways > 1:
        return f"{'passes, and ' if counts.passed else ''}fails in {ways} ways, on one tree"
    if counts.passed:
        return "passes and fails, on one tree"
    alike = f"{counts.failed} of {counts.ran} failed in one way"
    if counts.failed < needed:
        return f"{alike}: more repeats ({needed} such are clear)"
    return f"{alike}: the true rate is above {_percent(low)} (95 %)"


def _why(one: Repeated, needed: int) -> str:
    return evidence(one.counts, needed) + (f"; stopped: {one.stopped}" if one.stopped else "")


def _rate(counts: Counts) -> str:
    low, high = counts.interval
    if not counts.ran:
        return "-"
    return f"{_percent(counts.failed / counts.ran)} ({100 * low:.0f}–{_percent(high)})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _failures(one: Repeated) -> list[str]:
    if not one.counts.failures:
        return []
    lines = ["", f"failures of {one.row}:"]
    for way, count in one.counts.failures.items():
        lines.append(f"  {count} × {' '.join(way.split())}")
        example = one.examples.get(way)
        if example and example.line:
            lines.append(f"      {' '.join(example.line.split())}")
        if example and example.log:
            lines.append(f"      log: {example.log}")
    return [printable(line) for line in lines]


def _uncounted(one: Repeated) -> list[tuple[str, str]]:
    lines = []
    for status, count in one.counts.uncounted.items():
        example = one.examples.get(status)
        why = f", such as: {' '.join(example.line.split())}" if example and example.line else ""
        lines.append((f"not counted of {one.row}:", f"{count} {status}{why}"))
    return lines


def _totals(so_far: Sequence[Counts]) -> str:
    parts = [f"{sum(one.passed for one in so_far)} passed", f"{sum(one.failed for one in so_far)} failed"]
    uncounted = sum(sum(one.uncounted.values()) for one in so_far)
    return ", ".join([*parts, *([f"{uncounted} not counted"] if uncounted else [])])
