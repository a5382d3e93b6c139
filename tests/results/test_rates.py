"""A rate's interval, in numbers and in words."""

from __future__ import annotations

import pytest

from ci_tasks.results.rates import interval, rate_and_interval


@pytest.mark.parametrize(
    ("failed", "many", "low", "high"),
    [
        (0, 20, 0, 0.168),
        (5, 5, 0.478, 1),
        (1, 10, 0.0025, 0.445),
        (0, 3, 0, 0.708),
        (0, 0, 0, 1),
        (150, 300, 0.442, 0.558),
    ],
)
def test_the_interval_is_that_of_clopper_and_pearson(failed: int, many: int, low: float, high: float) -> None:
    assert interval(failed, many) == pytest.approx((low, high), abs=0.001)


@pytest.mark.parametrize(
    ("failed", "n", "text"), [(0, 0, "-"), (1, 4, "25 % (0–81 %)"), (3, 3, "100 % (29–100 %)"), (0, 3, "0 % (0–71 %)")]
)
def test_a_rate_is_named_with_its_interval(failed: int, n: int, text: str) -> None:
    assert rate_and_interval(failed, n) == text
