"""Why a commit got its mark."""

from __future__ import annotations

import pytest

from ci_tasks.judge.bisection.decide import Question
from ci_tasks.judge.bisection.evidence import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.judge.bisection.lineage import Lineage
from ci_tasks.judge.bisection.marks import mark

ALWAYS = [Observation(8, FAIL, "x")] * 5
SOMETIMES = [Observation(8, FAIL, "x"), *[Observation(8, PASS)] * 2] * 3


@pytest.mark.parametrize(
    ("before", "last", "said"),
    [
        ([], Observation(8, FAIL, "x"), "bad: fails (1 of 1 run)"),
        (SOMETIMES, Observation(8, PASS), "bad: passes this time, fails in 3 of 10 runs"),
        ([], Observation(8, PASS), "unclear: passes (1 run, none of which failed)"),
        ([], Observation(0, PASS), "probably good: passes (1 run)"),
        (ALWAYS, Observation(4, FAIL, "x"), "bad: fails as the bad end does (1 of 1 run)"),
        (
            ALWAYS,
            Observation(4, PASS),
            "good: 1 pass; with the culprit in it that would happen in 3 %",
        ),
        (
            SOMETIMES,
            Observation(4, PASS),
            "probably good: 1 pass; with the culprit in it that would happen in 65 %",
        ),
        (
            [*SOMETIMES, *[Observation(4, PASS)] * 8],
            Observation(4, PASS),
            "good: 9 passes; with the culprit in it that would happen in 2 %",
        ),
        (ALWAYS, Observation(4, FAIL, "y"), "skip: another failure: y"),
        (ALWAYS, Observation(4, BLOCKED, reason="image pull failed"), "skip: blocked: image pull failed"),
        (ALWAYS, Observation(4, MISSING, reason="no row x"), "skip: no row x"),
    ],
)
def test_a_mark_says_why(before: list[Observation], last: Observation, said: str) -> None:
    assert str(mark(Question(Lineage.line(8)), [*before, last])) == said
