"""Which runs count for the culprit, and which failure is looked for."""

from __future__ import annotations

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.observations import (
    BEFORE_GOOD,
    BLOCKED,
    FAIL,
    MISSING,
    PASS,
    Observation,
    count_runs,
    most_frequent_failure,
)
from ci_tasks.features.failures.bisection.posterior import Posterior, posterior_of

N = 8


def runs(text: str) -> list[Observation]:
    """`8- 8- 3+`: failures of commit 8, a pass of commit 3."""
    return [Observation(int(w[:-1]), *((FAIL, "x") if w[-1] == "-" else (PASS,))) for w in text.split()]


def after(text: str) -> Posterior:
    return posterior_of(CommitGraph.linear(N), count_runs(runs(text), "x"))


def test_where_the_row_fails_by_chance_too_a_single_failure_says_less() -> None:
    history = "8- 8- 8- 0+ 0+ 0+ 4-"
    failed, passed = Observation(BEFORE_GOOD, FAIL, "x"), Observation(BEFORE_GOOD, PASS)
    quiet, noisy = [passed] * 40, [failed, *[passed] * 5] * 5
    graph = CommitGraph.linear(N)
    sums = [
        sum(posterior_of(graph, count_runs(runs(history), "x", earlier)).weights[:5]) for earlier in (quiet, [], noisy)
    ]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > 0.97 > 0.9 > sums[2]


def test_only_the_wanted_failure_counts() -> None:
    others = [Observation(3, FAIL, "y"), Observation(4, BLOCKED), Observation(5, MISSING)]
    assert posterior_of(CommitGraph.linear(N), count_runs(runs("8- 2+") + others, "x")) == after("8- 2+")


def test_the_target_is_the_most_frequent_failure_of_the_bad_end() -> None:
    observations = [Observation(8, FAIL, s) for s in ("a", "b", "b")] + [Observation(3, FAIL, "a")] * 4
    assert most_frequent_failure(8, observations) == "b"
    assert most_frequent_failure(8, observations[:2]) == "a", "of equals the first"
    assert most_frequent_failure(8, observations[3:]) == ""
    for signatures, target in (("a#1 a#1 a#2", "a#1"), ("a#1 a#2 a#3", "a"), ("a#1 a#2", "a#1")):
        varying = [Observation(8, FAIL, signature, failure_kind="a") for signature in signatures.split()]
        assert most_frequent_failure(8, varying) == target, "the kind, where the evidence varies from run to run"
