"""Runs that passed → the band of each quantity at each step, and which values of another run are outside of it. Pure.

A band is Student's prediction interval of one more run, its probability shared by all quantities and steps of a run
(Bonferroni). Real scatter has heavier tails than that: where a run among the known ones is further from the others than
the interval, all bands are as wide as that. A healthy run then gets any mark in at most FALSE_MARKS of cases;
`bench/number_bands.py` measures that, also where the scatter is not normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from ci_tasks.features.numbers.result import Acceptance, Band, Mark, MetricPoint, RunNumbers, as_json
from ci_tasks.results.student import student_quantile

LEAST_RUNS = 5  # fewer show no scatter that could be trusted
MOST_RUNS = 50  # the newest ones
FALSE_MARKS = 0.05  # of healthy runs, measured
_SHARE = 0.005  # of that, for normal scatter: real scatter has heavier tails
MOST_STEPS = 50  # of one training, evenly: more would widen all bands
_MARGIN = 1.15  # beyond the furthest known value: the next odd one may be further
_LARGEST = 1e100
_ROUNDING = 1e-9  # relative; what is closer differs by rounding

_Place = tuple[str, int, int | None]


def learn(runs: Sequence[RunNumbers]) -> tuple[Band, ...]:
    """A band for each value that LEAST_RUNS of the runs have; () where there is none."""
    values: dict[_Place, list[float]] = {}
    for run in runs[-MOST_RUNS:]:
        for place, value in _finite(run.values).items():
            values.setdefault(place, []).append(value)
    known = {place: several for place, several in values.items() if len(several) >= LEAST_RUNS}
    furthest = max((_furthest(several) for several in known.values()), default=0.0)
    return tuple(_band(place, several, len(known), furthest) for place, several in known.items())


def counted(runs: Sequence[RunNumbers], accepted: Sequence[Acceptance]) -> list[RunNumbers]:
    """Those from which bands are learned: from the newest acceptance on, and none that did not fit when it ended,
    unless it was accepted since. Else a change would become normal by itself."""
    newest = accepted[-1] if accepted else None
    return [
        run
        for run in runs
        if (newest is None or run.id >= newest.run)
        and (not run.is_marked or (newest is not None and run.started_at <= newest.at))
    ]


def unseen(run: RunNumbers, bands: Sequence[Band]) -> int:
    """How many bands the run has no value for: nothing is known of these."""
    return len({(band.name, band.training, band.step) for band in bands} - _values(run).keys())


def marks(run: RunNumbers, bands: Sequence[Band]) -> tuple[Mark, ...]:
    """The values of a run that are outside of their bands, the furthest first. One that is no finite number where all
    runs before had one is outside."""
    values = _values(run)
    outside = []
    for band in bands:
        value = values.get((band.name, band.training, band.step))
        if value is None or band.low <= value <= band.high:
            continue
        sigma = (value - band.mean) / band.deviation if band.deviation and math.isfinite(value) else None
        outside.append(Mark(band.name, band.training, band.step, as_json(value), band.mean, sigma, band.runs))
    return tuple(sorted(outside, key=lambda mark: -abs(mark.sigma) if mark.sigma is not None else -math.inf))


def thinned(points: Sequence[MetricPoint]) -> tuple[MetricPoint, ...]:
    """At most MOST_STEPS of a training's points, evenly, the last one among them."""
    if len(points) <= MOST_STEPS:
        return tuple(points)
    return tuple(points[round(at * (len(points) - 1) / (MOST_STEPS - 1))] for at in range(MOST_STEPS))


def _values(run: RunNumbers) -> dict[_Place, float]:
    return {(name, at.training, at.step): at.value for name, points in run.values.items() for at in points}


def is_usable(value: float) -> bool:
    """Whether means and scatter can be computed with it: no NaN, and no float64's largest, whose sum is infinite."""
    return abs(value) < _LARGEST


def _finite(values: Mapping[str, Sequence[MetricPoint]]) -> dict[_Place, float]:
    return {
        (name, point.training, point.step): point.value
        for name, points in values.items()
        for point in points
        if is_usable(point.value)
    }


def _furthest(values: Sequence[float]) -> float:
    """How far the odd one is from the others, in standard deviations of one more value. Where the others are all equal
    it says nothing of scatter: 0."""
    mean = fmean(values)
    odd = max(values, key=lambda value: abs(value - mean))
    others = list(values)
    others.remove(odd)
    deviation = stdev(others)
    if deviation <= _ROUNDING * abs(mean):
        return 0.0
    return abs(odd - fmean(others)) / (deviation * math.sqrt(1 + 1 / len(others)))


def _band(place: _Place, values: Sequence[float], tests: int, furthest: float) -> Band:
    name, training, step = place
    mean, deviation = fmean(values), stdev(values)
    if deviation <= _ROUNDING * abs(mean):
        deviation, width = 0.0, _ROUNDING * abs(mean)
    else:
        errors = max(_MARGIN * furthest, student_quantile(_SHARE / tests, len(values) - 1))
        width = errors * deviation * math.sqrt(1 + 1 / len(values))
    return Band(name, training, step, len(values), mean, deviation, mean - width, mean + width)
