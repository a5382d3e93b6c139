"""Runs of the base and of your tree → run more, or a word. Nothing but the runs so far decides it.

word             shown by                                                            then it is wrong where
yours            your tree fails more often                                          it does not
fixed            your tree never failed, and the base fails more often               it does not
already broken   the base fails in most runs as well                                 yours fails more often by RISE
flaky            both fail now and then in the same way                              yours fails more often by RISE
fine             your tree never failed                                              yours fails more often by RISE
cannot tell      none of these is shown after so many runs

Runs are compared in pairs, one of each side, and after each pair the question is asked again. A limit that asks for
more with every pair keeps the probability of a wrong word below ERROR for any two failure rates and for up to
MOST_PAIRS pairs; `bench/compare.py` and a test compute it exactly. Each way of failing is compared by itself as well:
a row that failed before and fails in another way now is not the same. Failures are told apart by their evidence, and by
their kind where the evidence varies from run to run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.repeats.outcomes import (
    MAX_INCONCLUSIVE,
    OutcomeCounts,
    RepetitionOutcome,
    count_outcomes,
    is_conclusive,
    trailing_inconclusive,
)

BASE, YOURS = "base", "yours"  # the sides
FIXED, BROKEN, FLAKY, FINE = "fixed", "already broken", "flaky", "fine"
CANNOT_TELL, BLOCKED = "cannot tell", "blocked"
EXIT_CODES = {YOURS: 1, BROKEN: 0, FLAKY: 0, FIXED: 0, FINE: 0, CANNOT_TELL: 4, BLOCKED: 125}

ERROR = 0.05  # the most probable that a word is wrong
RISE = 0.5  # a rise of the failure rate that is not overlooked
MOST_PAIRS = 50
# Three passes of the base and three failures of yours are the fewest that can be so rare by chance: of rows that fail
# every other time, one in 64 does that, and one in 64 the opposite.
_FIRST_DIFFERENCE, _DIFFERENCE, _DIFFERENCE_POWER = 3, 0.0145, 1.6
_FIRST_NO_RISE, _NO_RISE, _NO_RISE_POWER = 5, 0.012, 1.6
_RATES = tuple((step + 0.5) / 40 for step in range(40))  # a row's failure rate, each as probable as the next at first
_ANY = ""  # all failures together, as one way
_SELDOM, _UNDECIDED = "seldom", "undecided"  # of a way: no rise, but never seen on the base; nothing shown


@dataclass(frozen=True)
class RunSides:
    """Run the row on these sides, in any order."""

    sides: tuple[str, ...]


@dataclass(frozen=True)
class ComparisonVerdict:
    """A word, and why. `way` is the way of failing that decides, "" for all failures together."""

    word: str
    why: str
    way: str = ""


def next_decision(
    base: Sequence[RepetitionOutcome], yours: Sequence[RepetitionOutcome], *, may_run: bool = True
) -> RunSides | ComparisonVerdict:
    """What comes after these outcomes, each side's in their order. Without `may_run` it ends here."""
    for side, outcomes in ((YOURS, yours), (BASE, base)):
        if trailing_inconclusive(outcomes) >= MAX_INCONCLUSIVE:
            return ComparisonVerdict(BLOCKED, f"{side} was {outcomes[-1].status} {MAX_INCONCLUSIVE} times in a row")
    base, yours = [one for one in base if is_conclusive(one)], [one for one in yours if is_conclusive(one)]
    pairs = min(len(base), len(yours), MOST_PAIRS)
    varying = _varying_kinds(base[:pairs]) | _varying_kinds(yours[:pairs])
    base_counts, yours_counts = (count_outcomes(_by_way(outcomes[:pairs], varying)) for outcomes in (base, yours))
    if verdict := verdict_of(base_counts, yours_counts):
        return verdict
    if not may_run or pairs == MOST_PAIRS:
        return ComparisonVerdict(CANNOT_TELL, _why_not(base_counts, yours_counts))
    return RunSides(
        tuple(side for side, outcomes in ((BASE, base), (YOURS, yours)) if len(outcomes) == pairs) or (BASE, YOURS)
    )


def _varying_kinds(outcomes: Sequence[RepetitionOutcome]) -> set[str]:
    """The kinds of failure whose evidence varies from run to run, so that it tells nothing apart."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for one in outcomes:
        if one.alike:
            kinds[one.alike][one.signature] += 1
    return {kind for kind, counts in kinds.items() if 2 * max(counts.values()) < sum(counts.values())}


def _by_way(outcomes: Sequence[RepetitionOutcome], varying: Collection[str]) -> list[RepetitionOutcome]:
    """The outcomes, with the kind in place of evidence that varies."""
    return [replace(one, signature=one.alike) if one.alike in varying else one for one in outcomes]


def verdict_of(base: OutcomeCounts, yours: OutcomeCounts) -> ComparisonVerdict | None:
    """The word that as many runs of each side show; None where they show none yet."""
    pairs, ways = yours.conclusive, list(dict.fromkeys([*yours.failures, *base.failures]))
    counts = {_ANY: (base.failed, yours.failed)}
    if len(ways) > 1:
        counts |= {way: (base.failures.get(way, 0), yours.failures.get(way, 0)) for way in ways}
    shown = {way: _shown(*count, pairs, len(counts)) for way, count in counts.items()}
    if more := [way for way, what in shown.items() if what == YOURS]:
        way = _named(more[-1], ways)
        apart = " in this way" if more[-1] else ""
        return ComparisonVerdict(YOURS, f"your tree fails more often than the base{apart}", way)
    main = next(iter(yours.failures)) if len(yours.failures) and len(ways) > 1 else _ANY
    if shown[_ANY] == FIXED:
        return ComparisonVerdict(FIXED, "your tree never failed, the base did more often", _named(_ANY, ways))
    if _UNDECIDED in shown.values():
        return None
    if not yours.failed:
        others = f"; the base failed in {base.failed} of {pairs} runs, which may be chance" if base.failed else ""
        return ComparisonVerdict(FINE, f"your tree never failed{others}")
    if shown[main] not in (BROKEN, FLAKY):
        return None
    if BROKEN in (shown[_ANY], shown[main]):
        return ComparisonVerdict(BROKEN, "the base fails in most runs, too", _named(main, ways))
    return ComparisonVerdict(FLAKY, "both fail now and then in the same way", _named(main, ways))


def _named(way: str, ways: Sequence[str]) -> str:
    return ways[0] if way == _ANY and len(ways) == 1 else way


def _shown(base: int, yours: int, pairs: int, comparisons: int) -> str:
    """What the failures in one way, of so many pairs, show."""
    if pairs >= _FIRST_DIFFERENCE:
        limit = _DIFFERENCE * (_FIRST_DIFFERENCE / pairs) ** _DIFFERENCE_POWER / comparisons
        if probability_of_rise(base, yours, pairs) >= 1 - limit:
            return YOURS
        if not yours and probability_of_rise(yours, base, pairs) >= 1 - limit:
            return FIXED
    limit = _NO_RISE * (_FIRST_NO_RISE / max(pairs, 1)) ** _NO_RISE_POWER
    if pairs < _FIRST_NO_RISE or probability_of_rise(base, yours, pairs, RISE) > limit:
        return _UNDECIDED
    if not yours:
        return FINE
    if base == pairs or sum(_rate_weights(base, pairs)[: len(_RATES) // 2]) <= ERROR:
        return BROKEN
    return FLAKY if base else _SELDOM


@cache
def probability_of_rise(base: int, yours: int, pairs: int, by: float = 0.0) -> float:
    """How probable it is that yours fails more often than the base by that much, after so many failures each."""
    base_weights, yours_weights = _rate_weights(base, pairs), _rate_weights(yours, pairs)
    steps = round(by * len(_RATES))
    above, total = 0.0, 0.0
    for at in reversed(range(steps, len(_RATES))):  # rates that are equal are half above, half below
        total += base_weights[at - steps] * (above + yours_weights[at] / 2)
        above += yours_weights[at]
    return total


@cache
def _rate_weights(failed: int, runs: int) -> tuple[float, ...]:
    """How probable each of the rates is after the runs."""
    weights = [rate**failed * (1 - rate) ** (runs - failed) for rate in _RATES]
    return tuple(weight / sum(weights) for weight in weights)


def _why_not(base: OutcomeCounts, yours: OutcomeCounts) -> str:
    runs = yours.conclusive
    if yours.failed and not base.failed:
        return f"yours failed in {yours.failed} of {runs} runs, the base in none: too few to blame your tree"
    if yours.failed and base.failed and not {*yours.failures} & {*base.failures}:
        return "both fail, but never in the same way"
    return f"yours failed in {yours.failed} of {runs} runs, the base in {base.failed}"
