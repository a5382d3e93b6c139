"""Paired trainings of base and candidate → whether the candidate learns as well. Nothing but the curves decides it.

A pair is one training of each side with one seed, on the same data. Its difference is that of the mean reward in the
last half of the steps. After each pair two questions are asked, by Student's t of the differences:

outcome       shown
shown         the candidate's reward is less than `margin` below the base's, and it rose during its own trainings
contradicted  the candidate's reward is below the base's
not seen      neither, after the planned number of pairs

The probability of a wrong `shown` (the candidate is `margin` or more below) and that of a wrong `contradicted` (it is
not below) are ERROR at most each, over all looks together: a look after pair n of N may err with
ERROR * (n² - m²) / N², where m is the look before. Differences that scatter less than their own steps do count with
the steps' scatter: three that are alike by chance prove nothing. `bench/verl_comparison.py` measures both rates, and
the power, on noisy curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.trials.student import chance_of_more, student_quantile

ERROR = 0.05
MARGIN = 0.05
FEWEST_PAIRS = 3  # two differences have a scatter that may be anything
FEWEST_STEPS = 8  # whose last half has a scatter
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class PairScore:
    """`difference` is candidate less base. `noise` is the standard error of it by the scatter of its steps. `gain` is
    how far the candidate's reward rose, `gain_noise` the same of that."""

    base: float
    candidate: float
    noise: float
    gain: float
    gain_noise: float

    @property
    def difference(self) -> float:
        return self.candidate - self.base


@dataclass(frozen=True)
class Estimate:
    """A mean of pairs, and its interval of 95 % (of a single look); the interval is infinite before FEWEST_PAIRS."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SequentialDecision:
    """`outcome` is shown, contradicted, not seen, or "" as long as more pairs are to come."""

    outcome: str
    why: str
    difference: Estimate


SHOWN, CONTRADICTED, NOT_SEEN, GO_ON = "shown", "contradicted", "not seen", ""


def score(base: Points, candidate: Points) -> PairScore | None:
    """The score of a pair, from the rewards of each side by step; None where they have too few steps in common."""
    ours, theirs = dict(base), dict(candidate)
    steps = sorted(ours.keys() & theirs.keys())
    if len(steps) < FEWEST_STEPS:
        return None
    last = steps[len(steps) // 2 :]
    first = steps[: max(2, len(steps) // 4)]
    differences = [theirs[step] - ours[step] for step in last]
    begin, end = [theirs[step] for step in first], [theirs[step] for step in last]
    return PairScore(
        base=fmean(ours[step] for step in last),
        candidate=fmean(end),
        noise=_standard_error(differences),
        gain=fmean(end) - fmean(begin),
        gain_noise=math.hypot(_standard_error(begin), _standard_error(end)),
    )


def decide(pairs: Sequence[PairScore], planned: int, margin: float = MARGIN) -> SequentialDecision:
    """What so many of `planned` pairs show."""
    differences = [pair.difference for pair in pairs]
    estimate = _estimate(differences, [pair.noise for pair in pairs])
    if planned < FEWEST_PAIRS:
        why = f"{counted(planned, 'pair')} show no scatter; --repeat {FEWEST_PAIRS} is the fewest"
        return SequentialDecision(NOT_SEEN if len(pairs) >= planned else GO_ON, why, estimate)
    if len(pairs) < FEWEST_PAIRS:
        return SequentialDecision(GO_ON, "", estimate)
    if _are_one_pair(pairs):
        return SequentialDecision(
            NOT_SEEN, "the seeds change nothing: all pairs are the same trainings again", estimate
        )
    allowed = error_of_look(len(pairs), planned)
    noise, gain_noise = [pair.noise for pair in pairs], [pair.gain_noise for pair in pairs]
    below = _probability([-difference for difference in differences], noise)
    far_below = _probability([difference + margin for difference in differences], noise)
    no_gain = _probability([pair.gain for pair in pairs], gain_noise)
    if below <= allowed:
        return SequentialDecision(CONTRADICTED, "the candidate's reward is below the base's", estimate)
    if far_below <= allowed and no_gain <= allowed:
        return SequentialDecision(SHOWN, f"the candidate's reward is less than {margin:g} below the base's", estimate)
    if len(pairs) < planned:
        return SequentialDecision(GO_ON, "", estimate)
    if far_below <= allowed:
        return SequentialDecision(
            NOT_SEEN, "the candidate is not shown to learn: alike may mean that neither does", estimate
        )
    why = f"the trainings scatter too much to tell a drop of {margin:g}; more pairs, or more steps, would"
    return SequentialDecision(NOT_SEEN, why, estimate)


def error_of_look(pair: int, planned: int) -> float:
    """The probability of a wrong word that the look after this pair may have."""
    before = pair - 1 if pair > FEWEST_PAIRS else 0
    return float(ERROR * (pair**2 - before**2) / planned**2)


def _are_one_pair(pairs: Sequence[PairScore]) -> bool:
    """Whether the seeds had no effect, so that more pairs show no more than one. Sides that are alike to the last digit
    are alike for that."""
    return len({pair.base for pair in pairs}) == 1 and any(pair.difference for pair in pairs)


def _probability(values: Sequence[float], noise: Sequence[float]) -> float:
    """How probable a mean as high is where the true one is 0 or less."""
    return chance_of_more(fmean(values), _mean_error(values, noise), len(values) - 1)


def _mean_error(values: Sequence[float], noise: Sequence[float]) -> float:
    of_steps = math.sqrt(fmean(one**2 for one in noise))
    return max(stdev(values), of_steps) / math.sqrt(len(values))


def _estimate(values: Sequence[float], noise: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(math.nan, -math.inf, math.inf)
    mean = fmean(values)
    if len(values) < FEWEST_PAIRS:
        return Estimate(mean, -math.inf, math.inf)
    half = student_quantile(ERROR, len(values) - 1) * _mean_error(values, noise)
    return Estimate(mean, mean - half, mean + half)


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
