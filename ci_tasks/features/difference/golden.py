"""Golden values in Megatron-LM's form: a run's metrics by step in a file that a team commits, and a run against it.

{"lm loss": {"start_step": 1, "end_step": 50, "step_interval": 1, "values": {"1": 10.84, …}}, …}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from ci_tasks.agent.codec import RecordError, decode, encode, parse
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, counted, one_line
from ci_tasks.features.difference.logged import LoggedResults
from ci_tasks.features.difference.result import (
    CONTRADICTED,
    NOT_SEEN,
    SHOWN,
    GoldenComparison,
    GoldenDifference,
    as_json,
)
from ci_tasks.logs.metrics import Points
from ci_tasks.run.report_runs import write_file

_MOST_LINES = 12  # differences that the terminal shows


@dataclass(frozen=True)
class GoldenMetric:
    start_step: int
    end_step: int
    step_interval: int
    values: Mapping[str, float | str]


Golden = Mapping[str, GoldenMetric]


def golden_of(results: LoggedResults) -> Golden:
    """The metrics of a log; of several ranks those of the lowest. A further training has its number in the name."""
    found: dict[str, GoldenMetric] = {}
    for several in results.series.values():
        for series in several:
            for training, part in enumerate(series.parts, 1):
                name = series.name if training == 1 else f"{series.name} (training {training})"
                found.setdefault(name, _metric(part))
    return found


def read_golden(path: Path) -> Golden:
    """Raises UsageError."""
    try:
        document = parse(path.read_bytes(), where=str(path))
        golden = decode(dict[str, GoldenMetric], document, where=str(path))
        for metric in golden.values():
            tuple(map(float, metric.values.values()))
        if any(metric.values for metric in golden.values()):
            return golden
        problem = "it has no values"
    except (OSError, RecordError, ValueError) as error:
        problem = str(error)
    hint = "`ci-tasks diff RUN --write-golden FILE` writes one"
    raise UsageError(f"{path} holds no golden values: {problem}", hint=hint)


def write_golden(path: Path, golden: Golden) -> None:
    document = {name: encode(metric, versioned=False) for name, metric in golden.items()}
    write_file(path, [json.dumps(document, indent=1), "\n"])


def compare_with_golden(run: str, seen: Golden, file: str, golden: Golden, tolerance: float) -> GoldenComparison:
    """`tolerance` is relative to the file's value. Steps that the file does not have are not compared."""
    differences: list[GoldenDifference] = []
    missing: list[str] = []
    compared = 0
    for name, metric in golden.items():
        own = seen[name].values if name in seen else {}
        absent = metric.values.keys() - own.keys()
        if absent:
            missing.append(f"{name}: {len(absent)} of {counted(len(metric.values), 'step')}")
        for step, wanted in metric.values.items():
            if step in own:
                compared += 1
                if not _is_close(float(own[step]), float(wanted), tolerance):
                    differences.append(GoldenDifference(name, step, wanted, own[step]))
    outcome = CONTRADICTED if differences else NOT_SEEN if missing else SHOWN
    return GoldenComparison(run, file, tolerance, outcome, compared, tuple(differences), tuple(missing))


def text(compared: GoldenComparison) -> list[str]:
    within = f"{counted(compared.values, 'value')}, tolerance {compared.tolerance:g}"
    word = {SHOWN: "matches", CONTRADICTED: "differs from", NOT_SEEN: "is not shown to match"}[compared.outcome]
    lines = [
        f"{each.name} at step {each.step}: {each.golden} in the file, {each.value} in the run"
        for each in compared.differences[:_MOST_LINES]
    ]
    more = len(compared.differences) - _MOST_LINES
    lines += [f"and {counted(more, 'more difference')}"] if more > 0 else []
    lines += [f"not seen in the run: {each}" for each in compared.missing]
    head = f"{compared.run} {word} {compared.golden} ({within})"
    return [one_line(head), *(f"  {one_line(line)}" for line in lines)]


def _metric(part: Points) -> GoldenMetric:
    steps = [step for step, _ in part]
    interval = math.gcd(*(later - step for step, later in pairwise(steps))) or 1
    return GoldenMetric(steps[0], steps[-1], interval, {str(step): as_json(value) for step, value in part})


def _is_close(value: float, wanted: float, tolerance: float) -> bool:
    """A NaN is close to a NaN alone."""
    if not (math.isfinite(value) and math.isfinite(wanted)):
        return value == wanted or (math.isnan(value) and math.isnan(wanted))
    return abs(value - wanted) <= tolerance * abs(wanted)
