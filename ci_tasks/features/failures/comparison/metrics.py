"""The metrics of runs that passed: which differ between the sides by more than the runs of one side do. Pure.

Welch's test for each metric, whose probability is multiplied by the number of metrics (Bonferroni). A side with fewer
than LEAST_RUNS values shows no scatter, so nothing is said of its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from ci_tasks.records import PASSED, RunRecord

LEAST_RUNS = 3
SIGNIFICANT = 0.05  # of the probability, for all metrics together
_STEPS = 400
_EQUAL = 1e-9  # relative; what is closer differs by rounding


@dataclass(frozen=True)
class MetricChange:
    """A metric that moved: its means, and the probability of such a difference by chance."""

    name: str
    base: float
    yours: float
    p: float


@dataclass(frozen=True)
class MetricComparison:
    """`compared` is how many metrics both sides have often enough; 0: not seen."""

    compared: int = 0
    moved: tuple[MetricChange, ...] = ()


def compare_metrics(base: Sequence[RunRecord], yours: Sequence[RunRecord]) -> MetricComparison:
    """The metrics of both sides' runs."""
    values = {
        name: (base_values, yours_values)
        for name in dict.fromkeys(name for record in yours for name in record.metrics)
        if len(base_values := _values(base, name)) >= LEAST_RUNS
        and len(yours_values := _values(yours, name)) >= LEAST_RUNS
    }
    changes = [
        MetricChange(name, fmean(both[0]), fmean(both[1]), min(1.0, welch(*both) * len(values)))
        for name, both in values.items()
    ]
    return MetricComparison(len(values), tuple(change for change in changes if change.p <= SIGNIFICANT))


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """The probability that means differ by so much where there is no difference. Values that never vary differ, or they
    do not."""
    errors = variance(one) / len(one), variance(other) / len(other)
    difference = abs(fmean(one) - fmean(other))
    if difference <= _EQUAL * max(map(abs, (*one, *other))):
        return 1.0
    if not sum(errors):
        return 0.0
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / (len(one) - 1) + errors[1] ** 2 / (len(other) - 1))
    return student_tails(difference / math.sqrt(sum(errors)), freedom)


def student_tails(t: float, freedom: float) -> float:
    """How probable it is that Student's t is further from 0 than `t`: its density, summed up (Simpson) over the angle
    atan(t / sqrt(freedom)), in which it is a power of the cosine."""
    begin = math.atan(abs(t) / math.sqrt(freedom))
    width = (math.pi / 2 - begin) / _STEPS
    heights: list[float] = [
        math.cos(min(begin + step * width, math.pi / 2)) ** (freedom - 1)
        * (1 if step in (0, _STEPS) else 4 if step % 2 else 2)
        for step in range(_STEPS + 1)
    ]
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * scale * sum(heights) * width / 3)


def _values(records: Sequence[RunRecord], name: str) -> list[float]:
    values = [record.metrics.get(name) for record in records if record.status == PASSED]
    return [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
