"""How probable each commit is as the culprit, given the runs.

Before the culprit the row passes, save for a rare failure by chance. From the culprit on it fails with one rate, which
nobody knows: most failures are deterministic, and any other rate is as good as the next. Both are weighed by what all
runs say together, so that no estimate has to be made first, and none is ever final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.observations import RunCounts

FALSE_FAILURE_RATE = 0.005  # how often a good commit fails with the very signature of the failure
DETERMINISTIC_PRIOR = 0.5  # how probable a deterministic failure is, before anything ran
MISSED_FAILURE_RATE = 0.005  # how often a deterministic failure does not show
OLDER_PRIOR = 0.1  # how probable it is that the good end is not good, before anything ran


@dataclass(frozen=True)
class Posterior:
    """By position: how probable it is as the culprit, with the sum 1, and how often the row then fails from it on."""

    weights: tuple[float, ...]
    rates: tuple[float, ...]

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
    memo: dict[tuple[int, int], tuple[float, float]] = {}
    scores, rates = [], []
    for candidate, within in enumerate(graph.descendants):
        inside = [entry for entry in tested if within >> entry[0] & 1]
        key = sum(entry[1] for entry in inside), sum(entry[2] for entry in inside)
        if key not in memo:
            outside = (fails - key[0]) * log(FALSE_FAILURE_RATE) + (passes - key[1]) * log(1 - FALSE_FAILURE_RATE)
            likelihood, rate = _affected(*key)
            memo[key] = likelihood + outside, rate
        prior = OLDER_PRIOR if candidate == 0 else (1 - OLDER_PRIOR) / graph.bad
        scores.append(log(prior) + memo[key][0])
        rates.append(memo[key][1])
    return Posterior(normalized(scores), tuple(rates))


def normalized(scores: Sequence[float]) -> tuple[float, ...]:
    """Logarithms of weights as weights with the sum 1."""
    top = max(scores)
    raw = [exp(score - top) for score in scores]
    total = sum(raw)
    return tuple(weight / total for weight in raw)


def _affected(fails: int, passes: int) -> tuple[float, float]:
    """How probable these runs are of commits with the failure, as a logarithm, and the rate that they suggest."""
    always = log(DETERMINISTIC_PRIOR) + fails * log(1 - MISSED_FAILURE_RATE) + passes * log(MISSED_FAILURE_RATE)
    sometimes = log(1 - DETERMINISTIC_PRIOR) + lgamma(fails + 1) + lgamma(passes + 1) - lgamma(fails + passes + 2)
    top = max(always, sometimes)
    total = top + log(exp(always - top) + exp(sometimes - top))
    share = exp(always - total)
    return total, share * (1 - MISSED_FAILURE_RATE) + (1 - share) * (fails + 1) / (fails + passes + 2)
