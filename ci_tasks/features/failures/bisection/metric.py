"""A metric in place of a failure: a run fails where its value is worse than a limit, which both ends decide. Pure.

Each end runs LEAST_RUNS times. If their means do not differ by more than they scatter (Welch's test, with an error of
SIGNIFICANT), each runs up to MOST_RUNS times; then it is refused. So is a change of less than half of what is searched
for. The limit lies half of that change from the good end's mean, and at least LEAST_SIGMAS of the scatter: beyond it
lie few runs that nothing made worse, one in 28 where they are normal. The good end's runs that made the limit do not
count: they lie beyond it less often than others. A run on the wrong side of the limit is to the search what a flaky
failure is: it asks again, as often as its posterior needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, variance

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.failures.bisection.observations import FAIL, PASS, Observation
from ci_tasks.results.student import welch

LEAST_RUNS, MOST_RUNS = 5, 10
SIGNIFICANT = 0.05
LEAST_SIGMAS = 1.8  # with 1.3, bench/bisect_axes.py measures more wrong culprits than are claimed
_LOOKS = 2  # after LEAST_RUNS, and after MOST_RUNS: the error is shared between them


@dataclass(frozen=True)
class MetricLimit:
    """Beyond `value` a run is worse, above it where `rises`. `good` and `bad` are the means of the ends, `p` is how
    probable such a difference is by chance; `runs` of the good end made it."""

    value: float
    rises: bool
    good: float
    bad: float
    p: float
    runs: int = 0

    @property
    def change(self) -> float:
        """How much worse the bad end is, relative to the good end."""
        return abs(self.bad - self.good) / abs(self.good) if self.good else math.inf


@dataclass(frozen=True)
class MetricRule:
    """The metric `name`, which got worse by the share `worse` or more. `limit` is known once it was learnt."""

    name: str
    worse: float
    limit: MetricLimit | None = None

    @property
    def headline(self) -> str:
        return f"looking for {self.name}, worse by {_percent(self.worse)} or more"

    @property
    def target(self) -> str:
        """What the ends have shown."""
        assert self.limit is not None
        way = ("above", "more") if self.limit.rises else ("below", "less")
        return (
            f"looking for: {self.name} {way[0]} {self.limit.value:.6g} ({self.limit.good:.6g} at --good, "
            f"{self.limit.bad:.6g} at --bad: {_percent(self.limit.change)} {way[1]}, p = {self.limit.p:.1g})"
        )

    @property
    def signature(self) -> str:
        return f"{self.name} is worse"

    def learnt(self, observations: Sequence[Observation], bad: int) -> MetricRule:
        """The same, with the limit if the first runs of both ends show one; `bad` is the position of the bad end."""
        return self if self.limit else replace(self, limit=self._limit(observations, bad))

    def wanted(self, observations: Sequence[Observation], bad: int) -> int | None:
        """The end to run next before there is a limit; None where more runs of them will not show one."""
        counts = {position: len(_values(observations, position)) for position in (bad, 0)}
        end = min(counts, key=lambda position: counts[position])
        runs = sum(each.position == end for each in observations)
        return end if counts[end] < MOST_RUNS and runs < 2 * MOST_RUNS else None

    def judged(self, observations: Sequence[Observation]) -> list[Observation]:
        """The observations, of which those that are worse than the limit fail, without those that made it."""
        made = self.limit.runs if self.limit else 0
        at_good = [index for index, each in enumerate(observations) if each.position == 0 and each.value is not None]
        return [self._judge(each) for index, each in enumerate(observations) if index not in at_good[:made]]

    def kept(self) -> MetricRule:
        """The same for later stages, which did not make its limit."""
        return replace(self, limit=replace(self.limit, runs=0)) if self.limit else self

    def refusal(self, observations: Sequence[Observation], bad: int) -> str:
        """Why the ends show no limit."""
        good_values, bad_values = _values(observations, 0), _values(observations, bad)
        return (
            f"{self.name} is not shown to be worse by {_percent(self.worse)}: {_text(good_values)} at --good, "
            f"{_text(bad_values)} at --bad"
        )

    def _judge(self, observation: Observation) -> Observation:
        if self.limit is None or observation.value is None:
            return observation
        beyond = observation.value - self.limit.value
        if (beyond if self.limit.rises else -beyond) <= 0:
            return replace(observation, kind=PASS, signature="")
        return replace(observation, kind=FAIL, signature=self.signature)

    def _limit(self, observations: Sequence[Observation], bad: int) -> MetricLimit | None:
        for count in (LEAST_RUNS, MOST_RUNS):
            ends = [_values(observations, position)[:count] for position in (0, bad)]
            if min(map(len, ends)) < count:
                return None
            good_mean, bad_mean = map(fmean, ends)
            p = welch(*ends)
            least = abs(good_mean) * self.worse / 2
            if p <= SIGNIFICANT / _LOOKS and abs(bad_mean - good_mean) >= least:
                scatter = math.sqrt(fmean(map(variance, ends)))
                distance = max(least, LEAST_SIGMAS * scatter)
                rises = bad_mean > good_mean
                return MetricLimit(good_mean + (distance if rises else -distance), rises, good_mean, bad_mean, p, count)
        return None


def worse_of(text: str) -> float:
    """`10%` as a share. Raises UsageError."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise UsageError(f"--worse takes a share above 0, not {text!r}", hint="for example 10%")
    return share


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _values(observations: Sequence[Observation], position: int) -> list[float]:
    return [each.value for each in observations if each.position == position and each.value is not None]


def _text(values: Sequence[float]) -> str:
    scatter = math.sqrt(variance(values)) if len(values) > 1 else 0.0
    return f"{fmean(values):.6g} ± {scatter:.2g} in {len(values)} runs" if values else "no value"
