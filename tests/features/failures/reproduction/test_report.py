"""CI's run beside ours."""

from __future__ import annotations

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.features.ci_logs.parse.recovered_job import RecoveredJob
from ci_tasks.features.failures.reproduction.report import comparison
from ci_tasks.records import RunRecord

COMMIT, OTHER = "c0ffee" * 7, "decade" * 7


@pytest.mark.parametrize(
    ("checkout", "ci", "line"),
    [
        (Checkout("/w", COMMIT, "t"), COMMIT, ["c0ffeec0ffee", "c0ffeec0ffee", "same"]),
        (Checkout("/w", OTHER, "t", head=COMMIT), COMMIT, ["c0ffeec0ffee", "c0ffeec0ffee", "same"]),
        (Checkout("/w", OTHER, "t"), COMMIT, ["c0ffeec0ffee", "decadedecade", "DIFFERS"]),
        (Checkout("/w", COMMIT, "t", ("a.py", "b.py"), head=COMMIT), COMMIT,
         ["c0ffeec0ffee", "c0ffeec", "+", "2", "changed", "files", "DIFFERS"]),
        (None, COMMIT, ["c0ffeec0ffee", "none", "DIFFERS"]),
    ],
    ids=["the same", "the same with an overlay", "another", "an edited tree", "none"],
)  # fmt: skip
def test_the_commit_that_ran_is_compared_with_cis(checkout: Checkout | None, ci: str, line: list[str]) -> None:
    record = RunRecord("b.01", "l", "r", "h", "passed", checkout=checkout)
    lines = comparison(RecoveredJob(commit=ci), record)
    assert next(words for words in map(str.split, lines) if words[0] == "commit")[1:] == line
