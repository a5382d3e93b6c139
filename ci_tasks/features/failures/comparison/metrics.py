"""The metrics of runs that passed: which differ between the sides by more than the runs of one side do. Pure.

Welch's test for each metric, whose probability is multiplied by the number of metrics (Bonferroni). A side with fewer
than LEAST_RUNS values shows no scatter, so nothing is said of its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import PASSED, RunRecord
from ci_tasks.trials.student import welch

LEAST_RUNS = 3
SIGNIFICANT = 0.05  # of the probability, for all metrics together


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


def _values(records: Sequence[RunRecord], name: str) -> list[float]:
    values = [record.metrics.get(name) for record in records if record.status == PASSED]
    return [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
