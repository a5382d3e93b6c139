"""Why a commit got its mark."""

from __future__ import annotations

import pytest

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.marks import mark
from ci_tasks.features.failures.bisection.observations import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.features.failures.bisection.strategy import BisectionGoal

DETERMINISTIC_PRIOR = [Observation(8, FAIL, "x")] * 5
SOMETIMES = [Observation(8, FAIL, "x"), *[Observation(8, PASS)] * 2] * 3


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [
        ([], Observation(8, FAIL, "x"), "bad: fails (1 of 1 run)"),
        (SOMETIMES, Observation(8, PASS), "bad: passes this time, fails in 3 of 10 runs"),
        ([], Observation(8, PASS), "unclear: passes (1 run, none of which failed)"),
        ([], Observation(0, PASS), "probably good: passes (1 run)"),
        (DETERMINISTIC_PRIOR, Observation(4, FAIL, "x"), "bad: fails as the bad end does (1 of 1 run)"),
        (DETERMINISTIC_PRIOR, Observation(4, PASS), "good: 1 pass; with the culprit in it that would happen in 3 %"),
        (SOMETIMES, Observation(4, PASS), "probably good: 1 pass; with the culprit in it that would happen in 63 %"),
        ([*SOMETIMES, *[Observation(4, PASS)] * 8], Observation(4, PASS),
         "good: 9 passes; with the culprit in it that would happen in 2 %"),
        (DETERMINISTIC_PRIOR, Observation(4, FAIL, "y"), "skip: another failure: y"),
        ([Observation(8, FAIL, "x", failure_kind="k")], Observation(4, FAIL, "y", failure_kind="k"),
         "skip: the same kind, other evidence: y"),
        (DETERMINISTIC_PRIOR, Observation(4, BLOCKED, reason="image pull failed"), "skip: blocked: image pull failed"),
        (DETERMINISTIC_PRIOR, Observation(4, MISSING, reason="no row x"), "skip: no row x"),
    ],
)  # fmt: skip
def test_a_mark_says_why(before: list[Observation], last: Observation, expected: str) -> None:
    assert str(mark(BisectionGoal(CommitGraph.linear(8)), [*before, last])) == expected
