"""Two sides' results → what differs: status, failure, metrics with the step of divergence, time and memory. Pure.

Metrics of one step are compared bit for bit. Whether a difference is more than scatter is not decided here: one run of
a side shows none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ci_tasks.errors import counted
from ci_tasks.features.difference.result import NO_VALUE, OutputDifference, RunSide
from ci_tasks.logs.metrics import Points, Series
from ci_tasks.records import PASSED

STATUS, FAILURE, METRIC, TIME, MEMORY = "status", "failure", "metric", "time", "memory"
_LEAST_SHARE = 5e-5  # less is 0 in percent with two digits
LEAST_SECONDS, LEAST_CHANGE = 1.0, 0.05  # of a phase, and relative, of time and memory: less is no difference


def compare_outputs(old: RunSide, new: RunSide) -> tuple[OutputDifference, ...]:
    return (
        *_status(old, new),
        *_failure(old, new),
        *_metrics(old, new),
        *_amounts(TIME, "s", LEAST_SECONDS, old.seconds, new.seconds),
        *_amounts(MEMORY, "MiB", 0.0, old.memory, new.memory),
    )


def first_divergence(old: Series, new: Series) -> tuple[int, int, float, float] | None:
    """The training (from 1), the step, and both values where two series first differ; None where all steps that both
    have are equal. A NaN equals a NaN."""
    for part, (one, other) in enumerate(zip(old.parts, new.parts, strict=False), 1):
        values = dict(other)
        for step, value in one:
            if step in values and not _equal(value, values[step]):
                return part, step, value, values[step]
    return None


def _status(old: RunSide, new: RunSide) -> Iterator[OutputDifference]:
    if old.status and new.status and old.status != new.status:
        yield OutputDifference(STATUS, "status", old.status, new.status)


def _failure(old: RunSide, new: RunSide) -> Iterator[OutputDifference]:
    if (old.triage and old.triage.signature) == (new.triage and new.triage.signature):
        return
    yield OutputDifference(FAILURE, "failure", _failure_text(old), _failure_text(new))


def _failure_text(run: RunSide) -> str:
    if run.status == PASSED:
        return NO_VALUE
    return (run.triage.text or run.triage.line if run.triage else "") or run.reason or "not seen"


def _metrics(old: RunSide, new: RunSide) -> Iterator[OutputDifference]:
    """By step where both sides have steps, else by the last value."""
    by_name = {series.name: series for series in new.series}
    drawn = set()
    for series in old.series:
        other = by_name.get(series.name)
        if other is None:
            continue
        drawn.add(series.name)
        if len(series.parts) != len(other.parts):
            yield OutputDifference(METRIC, series.name, _trainings(series), _trainings(other))
        if (parting := first_divergence(series, other)) is not None:
            part, step, before, after = parting
            note = _largest(series.parts[part - 1], other.parts[part - 1])
            where = f"training {part}, {note}" if len(series.parts) > 1 else note
            yield OutputDifference(METRIC, series.name, *_pair(before, after), step, where)
    for name in old.metrics:
        if name in drawn or name not in new.metrics or _equal(old.metrics[name], new.metrics[name]):
            continue
        before, after = old.metrics[name], new.metrics[name]
        yield OutputDifference(METRIC, name, *_pair(before, after), note=change(before, after))


def _pair(old: float, new: float) -> tuple[str, str]:
    """In six digits, or in all of them where six are equal."""
    short = f"{old:.6g}", f"{new:.6g}"
    return short if short[0] != short[1] else (repr(old), repr(new))


def _trainings(series: Series) -> str:
    return counted(len(series.parts), "training")


def _largest(old: Points, new: Points) -> str:
    """Where two trainings are furthest apart, of steps where both values are finite."""
    values = dict(new)
    both = [(step, value, values[step]) for step, value in old if step in values]
    finite = [each for each in both if math.isfinite(each[1]) and math.isfinite(each[2])]
    if not finite:
        return "no step has finite values on both sides"
    step, before, after = max(finite, key=lambda each: abs(each[2] - each[1]))
    return f"furthest apart at step {step}: {change(before, after)}"


def _amounts(
    kind: str, unit: str, least: float, old: Mapping[str, float], new: Mapping[str, float]
) -> Iterator[OutputDifference]:
    for name, before in old.items():
        after = new.get(name)
        if after is None or abs(after - before) < max(least, LEAST_CHANGE * max(abs(before), abs(after))):
            continue
        yield OutputDifference(kind, name, f"{before:.4g} {unit}", f"{after:.4g} {unit}", note=change(before, after))


def change(old: float, new: float) -> str:
    """`+2.4%`, or the difference where the old value is 0 or no finite number."""
    if old and math.isfinite(old) and math.isfinite(new):
        share = (new - old) / abs(old)
        if abs(new) > 100 * abs(old):
            return f"{share:+.2g}x"
        return f"{share:+.2%}" if not share or abs(share) >= _LEAST_SHARE else f"{share:+.1g} of it"
    return f"{old:g} to {new:g}"


def _equal(one: float, other: float) -> bool:
    """Bit for bit, but for the many forms of NaN: 0 and -0 are two."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
