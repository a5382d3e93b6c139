"""How probable each commit is as the culprit, given the runs.

Before the culprit the row fails with a background rate, which is small and unknown: the same failure happens there by
chance. From the culprit on it fails with a higher rate, which nobody knows either: most failures are deterministic,
and any other rate is as good as the next. Both are weighed by what all runs say together, so that no estimate has to
be made first, and none is ever final.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from math import exp, log

from ci_tasks.agent.quick_dataclass import dataclass
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

    @cached_property
    def rate(self) -> float:
        """How often the row fails from the culprit on, as expected now."""
        return sum(weight * rate for weight, rate in zip(self.weights, self.rates, strict=True))

    @cached_property
    def best(self) -> int:
        return max(range(len(self.weights)), key=self.weights.__getitem__)


def posterior_of(graph: CommitGraph, run_counts: RunCounts) -> Posterior:
    """The posterior after the runs of `run_counts`."""
    tested = [(position, counts.fails, counts.passes) for position, counts in run_counts.counts.items() if counts.valid]
    fails, passes = sum(entry[1] for entry in tested), sum(entry[2] for entry in tested)
    at_good, before_good = run_counts.at_good, run_counts.before_good
    ran = sum(1 << position for position, _, _ in tested)
    keys = [-1, *(within & ran for within in graph.descendants[1:])]
    likelihoods = {}  # candidates with the same tested descendants share one
    for key in set(keys):
        older = key == -1  # the culprit is older than the good end, so that every run has it
        inside = [entry for entry in tested if key >> entry[0] & 1]
        failed, passed = sum(entry[1] for entry in inside), sum(entry[2] for entry in inside)
        likelihoods[key] = _likelihood(
            failed + (at_good[0] if older else 0),
            passed + (at_good[1] if older else 0),
            fails - failed + before_good[0] + (0 if older else at_good[0]),
            passes - passed + before_good[1] + (0 if older else at_good[1]),
        )
    prior = log((1 - OLDER_PRIOR) / graph.bad)
    scores = [prior + likelihoods[key][0] for key in keys]
    scores[0] += log(OLDER_PRIOR) - prior
    weights = normalized(scores)
    background = sum(weight * likelihoods[key][2] for weight, key in zip(weights, keys, strict=True))
    return Posterior(weights, tuple(likelihoods[key][1] for key in keys), background)


def normalized(scores: Sequence[float]) -> tuple[float, ...]:
    """Logarithms of weights as weights with the sum 1."""
    return tuple(_total(scores)[1])


@cache
def _likelihood(fails: int, passes: int, fails_outside: int, passes_outside: int) -> tuple[float, float, float]:
    """How probable runs of commits with and without the culprit are, as a logarithm; then the failure rate with it
    and the background rate that they suggest."""
    inside = _affected(fails, passes)
    scores = [
        prior + score + fails_outside * failing + passes_outside * passing
        for (prior, failing, passing), (score, _) in zip(_background_logarithms(), inside, strict=True)
    ]
    total, weights = _total(scores)
    expected = sum(weight * background for weight, (background, _) in zip(weights, BACKGROUND_PRIOR, strict=True))
    return total, sum(weight * rate for weight, (_, rate) in zip(weights, inside, strict=True)), expected


@cache
def _affected(fails: int, passes: int) -> tuple[tuple[float, float], ...]:
    """For each background: how probable these runs are of commits with the culprit, as a logarithm, and the rate that
    they suggest."""
    result = []
    for grid in _grids():
        total, weights = _total([prior + fails * failing + passes * passing for _, prior, failing, passing in grid])
        result.append((total, sum(weight * entry[0] for weight, entry in zip(weights, grid, strict=True))))
    return tuple(result)


def _total(scores: Sequence[float]) -> tuple[float, list[float]]:
    """The logarithm of the sum of what `scores` are logarithms of, and the share of each."""
    top = max(scores)
    raw = [exp(score - top) for score in scores]
    total = sum(raw)
    return top + log(total), [weight / total for weight in raw]


@cache
def _background_logarithms() -> tuple[tuple[float, float, float], ...]:
    """Of each background: the logarithms of its prior, of a failure and of a pass."""
    return tuple((log(prior), log(background), log(1 - background)) for background, prior in BACKGROUND_PRIOR)


@cache
def _grids() -> tuple[tuple[tuple[float, float, float, float], ...], ...]:
    """For each background the failure rates that are possible from the culprit on, each with the logarithms of its
    prior, of a failure and of a pass."""
    grids = []
    for background, _ in BACKGROUND_PRIOR:
        least = background + MIN_DIFFERENCE
        grid = [
            (least + (1 - least) * (step + 0.5) / _RATES, (1 - DETERMINISTIC_PRIOR) / _RATES) for step in range(_RATES)
        ]
        grid.append((1 - MISSED_FAILURE_RATE, DETERMINISTIC_PRIOR))
        grids.append(tuple((rate, log(prior), log(rate), log(1 - rate)) for rate, prior in grid))
    return tuple(grids)
