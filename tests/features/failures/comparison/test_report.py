"""The end of a comparison as text."""

from __future__ import annotations

from ci_tasks.features.failures.comparison.metrics import MetricChange, MetricComparison
from ci_tasks.features.failures.comparison.report import result_lines
from ci_tasks.features.failures.comparison.result import ComparisonResult, RowComparison, SideResult

FAILS = SideResult(4, 4, 0.51, 1.0, {"KeyError: 'x'#1": 4}, {"blocked": 1}, gpus=("0,1",))
PASSES = SideResult(4, 0, 0.0, 0.49, gpus=("0,1",))


def result(word: str, row: RowComparison) -> ComparisonResult:
    return ComparisonResult(word, 1, "ckpt", "h100a", "b" * 40, "a" * 40, 0.05, 0.5, (row,))


def test_the_end_has_both_rates_what_failed_the_gpus_and_the_promise() -> None:
    moved = MetricComparison(3, (MetricChange("loss", 1.0, 2.5, 0.0), MetricChange("kl", 0.1, 0.2, 0.0123)))
    row = RowComparison("async", "yours", "your tree fails more often than the base", "", FAILS, PASSES, moved)
    assert result_lines(result("yours", row)) == [
        "RESULT  ROW    YOURS FAILED       BASE FAILED      WHY",
        "yours   async  4 of 4 (51–100 %)  0 of 4 (0–49 %)  your tree fails more often than the base",
        "failures of yours: 4 × KeyError: 'x'#1; 1 blocked, not counted",
        "GPUs: 0,1",
        "metric loss moved: base 1, yours 2.5 (the same in all runs of a side)",
        "metric kl moved: base 0.1, yours 0.2 (p 0.012)",
        "",
        "yours; wrong in at most 5 % of comparisons",
    ]
