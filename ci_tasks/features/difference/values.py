"""The values that a log prints, its metrics by step and the hashes of its checkpoints' files: compared bit for bit, or
with golden values.

A line is of the rank that stands before it (`[rank3]:`, `rank=3`); without one, of no rank in particular. A hash is a
line's end as `sha256sum` prints it. Golden values are in Megatron-LM's form:

{"lm loss": {"start_step": 1, "end_step": 50, "step_interval": 1, "values": {"1": 10.84, …}}, …}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from ci_tasks.agent.codec import RecordError, parse
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, counted, one_line
from ci_tasks.logs.reading import Series, read_series
from ci_tasks.registry import MetricFormat

SHOWN, CONTRADICTED, NOT_SEEN = "shown", "contradicted", "not seen"
EXIT_CODES = {SHOWN: 0, CONTRADICTED: 1, NOT_SEEN: 1}
FILES = "checkpoint file"
_RANK = re.compile(rb"(?i)^.{0,60}?\brank[ _:=]?(\d{1,6})\b")
_MAY_BE_METRICS = re.compile(rb"(?i)step|rollout|eval")
_FILE_HASH = re.compile(rb"\b([0-9a-f]{64}) [ *]?([\w./+@=~-]+\.(?:safetensors|distcp|pth?|bin|ckpt))\s*$")
_OF_RANK, _OF_TRAINING = re.compile(r" \(rank \d+\)$"), re.compile(r" \(training (\d+)\)")
_ALL_POINTS = 1 << 20  # of one training: what is left out for a chart could be what differs
_MOST_LINES = 12  # differences that the terminal shows

# By metric and step, or by FILES and path. A NaN and an infinity are text.
Values = Mapping[str, Mapping[str, float | str]]


@dataclass(frozen=True)
class ValueDifference:
    """`step` is the path of a checkpoint's file, whose values are hashes."""

    name: str
    step: str
    old: float | str
    new: float | str


@dataclass(frozen=True)
class ValuesComparison:
    """A run against another one, bit for bit, or against golden values. `outcome` is shown (all equal, or within the
    tolerance), contradicted, or not seen. `values` counts the values that were compared; `differences` begin with the
    first step; `missing` names the metrics with values that a side lacks."""

    old: str
    new: str
    outcome: str
    values: int
    tolerance: float | None = None
    differences: tuple[ValueDifference, ...] = ()
    missing: tuple[str, ...] = ()


def read_values(lines: Iterable[bytes], formats: tuple[MetricFormat, ...] = ()) -> Values:
    """What a log prints; the lowest rank first. A path that is printed again has all of its hashes."""
    ranks: dict[str, list[bytes]] = {}
    files: dict[str, str] = {}
    for line in lines:
        if found := _FILE_HASH.search(line):
            path = found[2].decode()
            files[path] = f"{files.get(path, '')} {found[1].decode()}".strip()
        elif _MAY_BE_METRICS.search(line):
            rank = _RANK.match(line)
            ranks.setdefault(rank[1].decode() if rank else "", []).append(line)
    seen: dict[str, Mapping[str, float | str]] = {}
    for place in sorted(ranks, key=lambda rank: (len(rank), rank)):
        metrics = of_series(read_series(ranks[place], formats, _ALL_POINTS))
        seen |= {f"{name} (rank {place})" if place else name: steps for name, steps in metrics.items()}
    return {**seen, FILES: {**files}} if files else seen


def of_series(every: Iterable[Series]) -> Values:
    """Each training of a metric is one of its own, the first without a number."""
    return {
        f"{series.name}{f' (training {training})' if training > 1 else ''}": {
            str(step): _plain(value) for step, value in points
        }
        for series in every
        for training, points in enumerate(series.parts, 1)
    }


def of_lowest_rank(values: Values) -> Values:
    """The metrics alone; with several ranks, the lowest rank's."""
    found: dict[str, Mapping[str, float | str]] = {}
    for name, steps in values.items():
        if name != FILES:
            found.setdefault(_OF_RANK.sub("", name), steps)
    return found


def compare_values(
    old_id: str, old: Values, new_id: str, new: Values, tolerance: float | None = None
) -> ValuesComparison:
    """Bit for bit, and what one side lacks is a difference too; with a tolerance, which is relative to the old value,
    only what the old side has is compared."""
    differences: list[ValueDifference] = []
    missing: list[str] = []
    count, exact = 0, tolerance is None
    for name in {**old, **new} if exact else old:
        before, after = old.get(name, {}), new.get(name, {})
        if absent := before.keys() ^ after.keys() if exact else before.keys() - after.keys():
            missing.append(f"{name}: {len(absent)} of {counted(len(before.keys() | after.keys()), 'value')}")
        both = [(step, before[step], after[step]) for step in before if step in after]
        count += len(both)
        differences += [ValueDifference(name, *each) for each in both if not _is_same(*each[1:], tolerance)]
    is_wrong = differences or (missing and exact)
    outcome = CONTRADICTED if is_wrong else NOT_SEEN if missing or not count else SHOWN
    found = tuple(sorted(differences, key=_order))
    return ValuesComparison(old_id, new_id, outcome, count, tolerance, found, tuple(missing))


def _order(difference: ValueDifference) -> tuple[int, float]:
    training = _OF_TRAINING.search(difference.name)
    return int(training[1]) if training else 1, float(difference.step) if difference.name != FILES else math.inf


def _is_same(old: float | str, new: float | str, tolerance: float | None) -> bool:
    """0 and -0 are two without a tolerance; a NaN, which is text, equals a NaN alone."""
    if isinstance(old, str) or isinstance(new, str):
        return old == new
    if tolerance is None:
        return old == new and math.copysign(1.0, old) == math.copysign(1.0, new)
    return abs(new - old) <= tolerance * abs(old)


def text(compared: ValuesComparison) -> list[str]:
    exact = compared.tolerance is None
    words = {SHOWN: "equals", CONTRADICTED: "differs from", NOT_SEEN: "is not shown to equal"}
    how = "bit for bit" if exact else f"tolerance {compared.tolerance:g}"
    head = f"{compared.new} {words[compared.outcome]} {compared.old} ({counted(compared.values, 'value')}, {how})"
    lines = []
    for each in compared.differences[:_MOST_LINES]:
        values = f"at step {each.step}: {each.old} → {each.new}"
        lines.append(f"{each.name} {each.step if each.name == FILES else values}")
    more = len(compared.differences) - _MOST_LINES
    lines += [f"and {counted(more, 'more difference')}"] if more > 0 else []
    lines += [f"missing in {'one of them' if exact else 'the run'}: {each}" for each in compared.missing]
    return [one_line(head), *(f"  {one_line(line)}" for line in lines)]


def read_golden(path: Path) -> Values:
    """Raises UsageError."""
    try:
        golden = parse(path.read_bytes(), where=str(path))
        found = {
            name: {str(int(step)): _plain(float(value)) for step, value in metric["values"].items()}
            for name, metric in golden.items()
        }
        if any(found.values()):
            return found
        problem = "it has no values per step"
    except (OSError, RecordError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = getattr(error, "strerror", "") or str(error)
    hint = "`ci-tasks diff RUN --write-golden FILE` writes one"
    raise UsageError(f"no golden values in {path}: {problem}", hint=hint)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def write_golden(path: Path, values: Values) -> None:
    from ci_tasks.run.report_runs import write_file

    document = {}
    for name, steps in values.items():
        numbers = [int(step) for step in steps]
        interval = math.gcd(*(later - step for step, later in pairwise(numbers))) or 1
        steps_from = {"start_step": numbers[0], "end_step": numbers[-1], "step_interval": interval}
        document[name] = {**steps_from, "values": steps}
    write_file(path, [json.dumps(document, indent=1), "\n"])
