"""Student's t against its tables."""

from __future__ import annotations

import pytest

from ci_tasks.trials.student import student_tails


# Tables of Student's t, two-sided 5 %.
@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.776, 4), (2.042, 30)])
def test_the_tails_are_those_of_the_tables(t: float, freedom: int) -> None:
    assert student_tails(t, freedom) == pytest.approx(0.05, abs=2e-4)
