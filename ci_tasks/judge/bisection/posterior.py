"""How probable each commit is as the culprit, given the runs.

Before the culprit the row passes, save for a rare failure by chance. From the culprit on it fails with one rate, which
nobody knows: most failures are deterministic, and any other rate is as good as the next. Both are weighed by what all
runs say together, so that no estimate has to be made first, and none is ever final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

from ci_tasks.judge.bisection.evidence import Tally
from ci_tasks.judge.bisection.lineage import Lineage

BY_CHANCE = 0.005  # how often a good commit fails with the very signature of the failure
ALWAYS = 0.5  # how probable a deterministic failure is, before anything ran
SLIP = 0.005  # how often a deterministic failure does not show
OLDER = 0.1  # how probable it is that the good end is not good, before anything ran


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


def weigh(lineage: Lineage, seen: Tally) -> Posterior:
    """The posterior after `seen`."""
    tested = [(position, counts.fails, counts.passes) for position, counts in seen.counts.items() if counts.valid]
    fails, passes = sum(one[1] for one in tested), sum(one[2] for one in tested)
    memo: dict[tuple[int, int], tuple[float, float]] = {}
    scores, rates = [], []
    for candidate, within in enumerate(lineage.descendants):
        inside = [one for one in tested if within >> one[0] & 1]
        key = sum(one[1] for one in inside), sum(one[2] for one in inside)
        if key not in memo:
            outside = (fails - key[0]) * log(BY_CHANCE) + (passes - key[1]) * log(1 - BY_CHANCE)
            likelihood, rate = _affected(*key)
            memo[key] = likelihood + outside, rate
        prior = OLDER if candidate == 0 else (1 - OLDER) / lineage.bad
        scores.append(log(prior) + memo[key][0])
        rates.append(memo[key][1])
    return Posterior(normalized(scores), tuple(rates))


def normalized(scores: Sequence[float]) -> tuple[float, ...]:
    """Logarithms of weights as weights with the sum 1."""
    top = max(scores)
    raw = [exp(score - top) for score in scores]
    total = sum(raw)
    return tuple(one / total for one in raw)


def _affected(fails: int, passes: int) -> tuple[float, float]:
    """How probable these runs are of commits with the failure, as a logarithm, and the rate that they suggest."""
    always = log(ALWAYS) + fails * log(1 - SLIP) + passes * log(SLIP)
    sometimes = log(1 - ALWAYS) + lgamma(fails + 1) + lgamma(passes + 1) - lgamma(fails + passes + 2)
    top = max(always, sometimes)
    total = top + log(exp(always - top) + exp(sometimes - top))
    share = exp(always - total)
    return total, share * (1 - SLIP) + (1 - share) * (fails + 1) / (fails + passes + 2)
