"""How probable each commit is as the culprit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.observations import (
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


def test_before_anything_ran_all_commits_are_equal_and_the_good_end_is_probably_good() -> None:
    weights = after("").weights
    assert weights[0] == pytest.approx(0.1)
    assert weights[1:] == pytest.approx([0.9 / N] * N)


@pytest.mark.parametrize(
    ("history", "surely"),
    [
        ("8- 8- 8- 0+ 4+ 5-", {5}),  # one failure is surely bad, one pass of what always failed is surely good
        ("8- 8- 8- 0+ 4- 2+ 3-", {3}),
        ("8- 8- 8- 0+ 7+ 7+", {8}),
        ("8- 8- 8- 0+ 0+ 1-", {1}),
        # A pass of what fails in one run of three says little.
        ("8- 8+ 8+ 8- 8+ 8+ 0+ 0+ 0+ 0+ 0+ 5- 4+", {1, 2, 3, 4, 5}),
    ],
)
def test_the_culprit_lies_between_the_last_sure_pass_and_the_first_failure(history: str, surely: set[int]) -> None:
    weights = after(history).weights
    assert sum(weights[place] for place in surely) > 0.85
    assert all(weights[place] > 0.02 for place in surely)


@pytest.mark.parametrize(
    ("history", "low", "high"),
    [("8- 8- 8-", 0.9, 1.0), ("8- 8+ 8+ 8- 8+ 8+ 8- 8+ 8+", 0.25, 0.45), ("8- 8+", 0.3, 0.7)],
)
def test_the_rate_is_what_the_runs_suggest(history: str, low: float, high: float) -> None:
    assert low < after(history).rate < high


@given(st.lists(st.tuples(st.integers(0, N), st.booleans()), max_size=40), st.randoms())
def test_the_order_of_the_runs_does_not_matter(results: list[tuple[int, bool]], commit_run: object) -> None:
    text = [f"{place}{'+' if passed else '-'}" for place, passed in results]
    other = list(text)
    commit_run.shuffle(other)  # type: ignore[attr-defined]
    assert after(" ".join(text)).weights == pytest.approx(after(" ".join(other)).weights)
    assert sum(after(" ".join(text)).weights) == pytest.approx(1)


@given(st.lists(st.tuples(st.integers(0, N), st.booleans()), max_size=20), st.integers(1, N))
def test_a_failure_never_clears_what_the_commit_contains(results: list[tuple[int, bool]], place: int) -> None:
    text = " ".join(f"{at}{'+' if passed else '-'}" for at, passed in results)
    before, now = after(text), after(f"{text} {place}-")
    assert sum(now.weights[: place + 1]) >= sum(before.weights[: place + 1]) - 1e-9


def test_only_the_wanted_failure_counts() -> None:
    others = [Observation(3, FAIL, "y"), Observation(4, BLOCKED), Observation(5, MISSING)]
    assert posterior_of(CommitGraph.linear(N), count_runs(runs("8- 2+") + others, "x")) == after("8- 2+")


def test_a_side_branch_that_fails_clears_the_main_line() -> None:
    graph = CommitGraph([[0], [0], [1], [2], [3, 4]])  # 1─3 and 2─4, merged by 5
    weights = posterior_of(graph, count_runs(runs("5- 5- 5- 0+ 4-"), "x")).weights
    assert weights[2] + weights[4] > 0.9


def test_the_target_is_the_most_frequent_failure_of_the_bad_end() -> None:
    observations = [Observation(8, FAIL, s) for s in ("a", "b", "b")] + [Observation(3, FAIL, "a")] * 4
    assert most_frequent_failure(8, observations) == "b"
    assert most_frequent_failure(8, observations[:2]) == "a", "of equals the first"
    assert most_frequent_failure(8, observations[3:]) == ""
