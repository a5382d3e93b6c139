"""How probable each commit is as the culprit, given the runs.

Before the culprit the row fails with a background rate, which is small and unknown: the same failure happens there by
chance. From the culprit on it fails with a higher rate, which nobody knows either: most failures are deterministic,
and any other rate is as good as the next. Both are weighed by what all runs say together, so that no estimate has to
be made first, and none is ever final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.observations import RunCounts

# How often a commit without the culprit fails with the very signature of the failure, and how probable that is before
# anything ran.
BACKGROUND_PRIOR = (
    (0.001, 0.22),
    (0.01, 0.22),
    (0.03, 0.18),
    (0.06, 0.16),
    (0.10, 0.13),
    (0.15, 0.09),
)
DETERMINISTIC_PRIOR = 0.5  # how probable a deterministic failure is, before anything ran
MISSED_FAILURE_RATE = 0.005  # how often a deterministic failure does not show
OLDER_PRIOR = 0.1  # how probable it is that the good end is not good, before anything ran
MIN_DIFFERENCE = 0.1  # how much more often the row fails from the culprit on, at least
_RATES = 24  # rates above the background that stand for all


@dataclass(frozen=True)
class Posterior:
    """By position: how probable it is as the culprit, with the sum 1, and how often the row then fails from it on.
    `background` is how often it fails without the culprit, as expected now."""

    weights: tuple[float, ...]
    rates: tuple[float, ...]
    background: float

    @property
    def rate(self) -> float:
        """How often the row fails from the culprit on, as expected now."""
        return sum(weight * rate for weight, rate in zip(self.weights, self.rates, strict=True))

    @property
    def best(self) -> int:
        return max(range(len(self.weights)), key=self.weights.__getitem__)


def posterior_of(graph: CommitGraph, run_counts: RunCounts) -> Posterior:
    """The posterior after the runs of `run_counts`."""
    tested = [(position, counts.fails, counts.passes) for position, counts in run_counts.counts.items() if counts.valid]
    fails, passes = sum(entry[1] for entry in tested), sum(entry[2] for entry in tested)
    at_good, before_good = run_counts.at_good, run_counts.before_good
    scores, rates, backgrounds = [], [], []
    for candidate, within in enumerate(graph.descendants):
        inside = [entry for entry in tested if within >> entry[0] & 1]
        failed, passed = sum(entry[1] for entry in inside), sum(entry[2] for entry in inside)
        likelihood, rate, background = _likelihood(
            failed + (0 if candidate else at_good[0]),
            passed + (0 if candidate else at_good[1]),
            fails - failed + before_good[0] + (at_good[0] if candidate else 0),
            passes - passed + before_good[1] + (at_good[1] if candidate else 0),
        )
        prior = OLDER_PRIOR if candidate == 0 else (1 - OLDER_PRIOR) / graph.bad
        scores.append(log(prior) + likelihood)
        rates.append(rate)
        backgrounds.append(background)
    weights = normalized(scores)
    return Posterior(weights, tuple(rates), sum(map(float.__mul__, weights, backgrounds)))


def normalized(scores: Sequence[float]) -> tuple[float, ...]:
    """Logarithms of weights as weights with the sum 1."""
    top = max(scores)
    raw = [exp(score - top) for score in scores]
    total = sum(raw)
    return tuple(weight / total for weight in raw)


@cache
def _likelihood(fails: int, passes: int, fails_outside: int, passes_outside: int) -> tuple[float, float, float]:
    """How probable runs of commits with and without the culprit are, as a logarithm; then the failure rate with it
    and the background rate that they suggest."""
    scores, rates = [], []
    for background, prior in BACKGROUND_PRIOR:
        inside, rate = _affected(fails, passes, background)
        outside = fails_outside * log(background) + passes_outside * log(1 - background)
        scores.append(log(prior) + inside + outside)
        rates.append(rate)
    top = max(scores)
    weights = normalized(scores)
    expected = sum(weight * background for weight, (background, _) in zip(weights, BACKGROUND_PRIOR, strict=True))
    total = top + log(sum(exp(score - top) for score in scores))
    return total, sum(map(float.__mul__, weights, rates)), expected


@cache
def _affected(fails: int, passes: int, background: float) -> tuple[float, float]:
    """How probable these runs are of commits with the culprit, as a logarithm, and the rate that they suggest."""
    least = background + MIN_DIFFERENCE
    rates = [least + (1 - least) * (step + 0.5) / _RATES for step in range(_RATES)]
    scores = [log((1 - DETERMINISTIC_PRIOR) / _RATES) + fails * log(rate) + passes * log(1 - rate) for rate in rates]
    rates.append(1 - MISSED_FAILURE_RATE)
    scores.append(log(DETERMINISTIC_PRIOR) + fails * log(rates[-1]) + passes * log(MISSED_FAILURE_RATE))
    top = max(scores)
    weights = normalized(scores)
    return top + log(sum(exp(score - top) for score in scores)), sum(map(float.__mul__, weights, rates))
