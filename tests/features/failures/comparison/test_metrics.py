"""Which metrics moved by more than the runs of one side scatter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ci_tasks.features.failures.comparison.metrics import MetricComparison, compare_metrics
from ci_tasks.records import RunRecord


def runs(values: Sequence[float | str], status: str = "passed") -> list[RunRecord]:
    return [RunRecord("b.01", "l", "r", "h", status, metrics={"loss": value}) for value in values]


CASES = [
    ("too few runs", [1, 1], [2, 2, 2], 0, False),
    ("a clear move", [1.0, 1.01, 0.99], [2.0, 2.01, 1.99], 1, True),
    ("within the scatter", [1.0, 1.4, 0.7], [1.2, 1.5, 0.9], 1, False),
    ("the same in every run", [1.5, 1.5, 1.5], [1.5, 1.5, 1.5], 1, False),
    ("another value in every run", [1.5, 1.5, 1.5], [1.25, 1.25, 1.25], 1, True),
    ("no finite number", ["nan", 1.0, 1.0], [2.0, 2.0, 2.0], 0, False),
]


@pytest.mark.parametrize(
    ("base", "yours", "compared", "moved"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_metric_moves_or_not(base: list[float], yours: list[float], compared: int, moved: bool) -> None:
    result = compare_metrics(runs(base), runs(yours))
    assert (result.compared, bool(result.moved)) == (compared, moved)
    assert compare_metrics(runs(base), runs(yours, "failed")) == MetricComparison(), "runs that failed have none"
