"""A rate's interval, in numbers and in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.results.rates import at_least, rate_and_interval, wilson


# R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I,
# the score method without continuity correction.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_the_published_one(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


proportions = st.integers(0, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(proportions)
def test_the_interval_holds_the_rate_that_was_seen(proportion: tuple[int, int]) -> None:
    successes, n = proportion
    low, high = wilson(successes, n)
    assert 0 <= low < high <= 1
    assert n == 0 or low <= successes / n <= high
    assert (low == 0) == (successes == 0)
    assert (high == 1) == (successes == n)


@given(proportions, st.integers(2, 5))
def test_more_tries_of_the_same_rate_and_less_certainty_make_it_narrower(
    proportion: tuple[int, int], times: int
) -> None:
    successes, n = proportion
    low, high = wilson(successes, n)
    more_low, more_high = wilson(successes * times, n * times)
    surer_low, surer_high = wilson(successes, n, z=2.58)
    assert more_high - more_low <= high - low <= surer_high - surer_low


@pytest.mark.parametrize(("successes", "n", "z"), [(-1, 3, 1.96), (4, 3, 1.96), (0, -1, 1.96), (1, 3, 0)])
def test_no_such_proportion_is_an_error(successes: int, n: int, z: float) -> None:
    with pytest.raises(ValueError, match="no such proportion"):
        wilson(successes, n, z)


def test_a_rate_in_words_claims_no_more_than_the_interval() -> None:
    assert at_least(5, 5) == "fails at least 56 %"  # 56.6, rounded down
    assert rate_and_interval(5, 20) == "25 % (11–47 %)"
    assert rate_and_interval(0, 0) == "-"
