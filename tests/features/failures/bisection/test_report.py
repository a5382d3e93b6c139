"""A bisection as text, to the character."""

from __future__ import annotations

from ci_tasks.checkout.commits import Commit
from ci_tasks.features.failures.bisection import report
from ci_tasks.features.failures.bisection.axis import Point


def commit(sha: str, subject: str = "a change") -> Point:
    return Point(Commit(sha, (), "Ada <ada@example.com>", "2026-01-02T03:04:05+01:00", subject))


FIRST, LAST = commit("0" * 40), commit("f" * 40, subject="clears\x1b[2J the screen\nand goes on")
EFFORT = report.Effort(runs=45, points=12, seconds=4000)


def test_the_culprit_comes_with_its_evidence_and_the_next_step() -> None:
    assert report.culprit(
        LAST, 0.9712, report.FailureCounts(5, 8, 0, 24), report.see_commit("/a checkout", LAST), EFFORT
    ) == [
        "",
        f"the culprit: {LAST.key}",
        "    clears�[2J the screen and goes on",
        "    Ada <ada@example.com>, 2026-01-02T03:04:05+01:00",
        "probability 97 %: the row fails in 5 of 8 runs from it on, in 0 of 24 before it",
        "see it: git -C '/a checkout' show ffffffffffff",
        "45 runs of 12 commits, 1 h 06 min of tests",
    ]
