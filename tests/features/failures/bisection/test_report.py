"""A bisection as text, to the character."""

from __future__ import annotations

import pytest

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


def test_several_that_are_left_are_listed_and_many_counted() -> None:
    lines = report.unclear([(commit(f"{number:040d}"), 0.05) for number in range(20)], False, EFFORT)
    assert lines[1] == "only commits that cannot be tested are left; the culprit is one of:"
    assert lines[2] == "    000000000000   5 %  a change"
    assert lines[-2:] == ["    and 8 more", "45 runs of 12 commits, 1 h 06 min of tests"]
    assert report.unclear([(FIRST, 0.5)], True, EFFORT)[1] == "not clear after 45 runs; the most probable are:"


@pytest.mark.parametrize(
    ("seconds", "hosts", "line"),
    [
        (90, 2, "some 12 runs if it always fails, more if it is flaky, 1 min 30 s each lately: 9 min 00 s on 2 hosts"),
        (None, 1, "some 12 runs if it always fails, more if it is flaky, no earlier run says how long each takes"),
    ],
)
def test_the_cost_comes_before_the_first_run(seconds: float | None, hosts: int, line: str) -> None:
    assert report.cost(12, seconds, hosts) == line
