"""Trials as text and as records for --json: rates, ways of failing, what was not counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import one_line, printable, truncated
from ci_tasks.report.table import Table, duration
from ci_tasks.results.rates import interval, percents
from ci_tasks.trials.rules import FAILED, PASSED, Outcome, TrialVerdict, telling, ways

_SHORT = 70


@dataclass(frozen=True)
class SideResult:
    """A row's runs on one tree that passed or failed. `low` to `high` is the 95 % interval of the failure rate.
    `failures` are counts by way; `inconclusive` by status are no evidence. `gpus` are the sets on which runs ran."""

    runs: int
    failed: int
    low: float
    high: float
    failures: Mapping[str, int]
    inconclusive: Mapping[str, int]
    gpus: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        low, high = percents((self.low, self.high))
        return f"{self.failed} of {self.runs} ({low}–{high} %)" if self.runs else "-"


def side(outcomes: Sequence[Outcome], setting: str, bounds: tuple[float, float] | None = None) -> SideResult:
    """The runs of a setting among a row's runs. `bounds` come from a rule that looked more than once."""
    own = [one for one in outcomes if one.setting == setting]
    known = telling(outcomes, setting)
    failures = ways(known)
    low, high = bounds or interval(failures.total(), len(known))
    silent = Counter(one.status for one in own if not one.counts)
    gpus, ids = dict.fromkeys(one.gpus for one in own if one.gpus), [one.run for one in own if one.run]
    numbers = (len(known), failures.total(), round(low, 4), round(high, 4))
    return SideResult(*numbers, dict(failures), dict(silent), tuple(gpus), tuple(ids))


def rates(
    verdicts: Mapping[str, TrialVerdict], sides: Mapping[str, Mapping[str, SideResult]], width: int | None
) -> list[str]:
    """A line for each row: its word, how often it failed on each side, and why. `sides` are by heading and row."""
    body = [(each.word, row, *(str(of[row]) for of in sides.values()), each.why) for row, each in verdicts.items()]
    return Table(body, ("RESULT", "ROW", *sides, "WHY")).text(width)


def moved_images(outcomes: Sequence[Outcome]) -> list[str]:
    """Which rows had several images in one trial."""
    images: dict[str, set[str]] = {}
    for one in outcomes:
        images.setdefault(one.row, set()).update([one.image] * bool(one.image))
    why = "a tag moved, or the trees name several; `--image NAME@sha256:…` pins one"
    return [f"{one_line(row)}: its runs had {len(had)} images: {why}" for row, had in images.items() if len(had) > 1]


def failures(row: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Each way of failing with the line that explains it and its log, then what was not counted; the last of a kind
    stands for its like."""
    known = telling(outcomes)
    examples = {one.signature or FAILED: one for one in known if one.status == FAILED}
    lines = ["", f"failures of {one_line(row)}:"] if examples else []
    for way, count in ways(known).items():
        reason, log = examples[way].reason, examples[way].log
        lines += [f"  {count} × {one_line(way)}", f"      {one_line(reason)}"]
        lines += [f"      log: {printable(log)}"] if log else []
    silent = {one.status: one.reason for one in outcomes if not one.counts}
    counts = Counter(one.status for one in outcomes if not one.counts)
    for status, reason in silent.items():
        lines.append(one_line(f"not counted of {row}: {counts[status]} {status} ({reason or 'no reason'})"))
    return lines


def line(number: int, one: Outcome, what: str) -> str:
    """The line of a run; `what` says what ran."""
    how = one.status if one.status == PASSED else f"{one.status}: {truncated(one.reason or one.signature, _SHORT)}"
    took = f", {duration(one.seconds)}" if one.seconds is not None else ""
    return f"{number:>3}  {one_line(what)}: {one_line(how)}{f' [{one.run}{took}]' if one.run else ''}"
