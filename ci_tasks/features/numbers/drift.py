"""A row's runs over weeks → where a quantity's mean changed and stayed so. Pure.

Each place that leaves LEAST_SIDE runs on both sides is tried with Student's test for two samples of one scatter
(Welch's is wrong far out in the tails of so few runs). The least probable one counts, if its probability, times all
places and quantities that were tried, is at most SIGNIFICANT.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean

from ci_tasks.features.numbers.bands import is_usable
from ci_tasks.features.numbers.result import Drift, RunNumbers
from ci_tasks.results.student import pooled

LEAST_SIDE = 5
SIGNIFICANT = 0.01
_LEAST = sys.float_info.min  # 0 is for values that never scattered


def drifts(runs: Sequence[RunNumbers]) -> tuple[Drift, ...]:
    """The changes, the surest first; `runs` by time. Of a metric by step the mean of a run counts."""
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    found = [drift for name in names if (drift := _change(name, runs, len(names))) is not None]
    return tuple(sorted(found, key=lambda drift: drift.p))


def _change(name: str, runs: Sequence[RunNumbers], names: int) -> Drift | None:
    series = [(run, value) for run in runs if (value := _mean(run, name)) is not None]
    values = [value for _, value in series]
    places = range(LEAST_SIDE, len(values) - LEAST_SIDE + 1)
    if not places:
        return None
    p, at = min((pooled(values[:place], values[place:]), place) for place in places)
    if len({*values}) > 2:
        p = max(p, _LEAST)
    corrected = min(1.0, p * len(places) * names)
    if corrected > SIGNIFICANT:
        return None
    run = series[at][0]
    return Drift(name, run.id, run.started_at, fmean(values[:at]), fmean(values[at:]), corrected)


def _mean(run: RunNumbers, name: str) -> float | None:
    finite = [point.value for point in run.values.get(name, ()) if is_usable(point.value)]
    return fmean(finite) if finite else None
