"""How probable each commit is as the culprit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_before_anything_ran_all_commits_are_equal_and_the_good_end_is_probably_good() -> None:
    weights = after("").weights
    assert weights[0] == pytest.approx(0.1)
    assert weights[1:] == pytest.approx([0.9 / N] * N)


@pytest.mark.parametrize(
    ("history", "surely"),
    [
        ("8- 8- 8- 0+ 0+ 0+ 4+ 5- 5-", {5}),  # one failure may be chance, two are surely bad; one pass is surely good
        ("8- 8- 8- 0+ 4- 2+ 3-", {3}),
        ("8- 8- 8- 0+ 7+ 7+", {8}),
        ("8- 8- 8- 0+ 0+ 0+ 1- 1-", {1}),
        # A pass of what fails in one run of three says little.
        ("8- 8+ 8+ 8- 8+ 8+ 0+ 0+ 0+ 0+ 0+ 5- 4+", {1, 2, 3, 4, 5}),
    ],
)
def test_the_culprit_lies_between_the_last_sure_pass_and_the_first_failure(history: str, surely: set[int]) -> None:
    weights = after(history).weights
    assert sum(weights[place] for place in surely) > 0.85
    assert all(weights[place] > 0.02 for place in surely)


# runs → the rate of the failure and of the background, between these
RATES = [
    ("8- 8- 8-", (0.9, 1.0), (0.0, 0.1)),
    ("8- 8+ 8+ 8- 8+ 8+ 8- 8+ 8+", (0.25, 0.45), (0.0, 0.1)),
    ("8- 8+", (0.3, 0.7), (0.0, 0.1)),
    ("8- 8- 8- 0+ 0+ 0+ 2+ 3+", (0.9, 1.0), (0.0, 0.05)),
    ("8- 8- 8- 0+ 0- 0+ 0+ 3+ 3+ 3- 3+ 4+ 4+ 4+ 4+ 4+ 4+", (0.8, 1.0), (0.08, 0.2)),
]
Range = tuple[float, float]


@pytest.mark.parametrize(("history", "rate", "background"), RATES)
def test_the_rates_are_what_the_runs_suggest(history: str, rate: Range, background: Range) -> None:
    now = after(history)
    assert rate[0] < now.rate < rate[1]
    assert background[0] < now.background < background[1]


RUNS = st.lists(st.tuples(st.integers(0, N), st.sampled_from("+-")).map(lambda run: f"{run[0]}{run[1]}"), max_size=30)


@given(RUNS, st.randoms(), st.integers(1, N))
def test_no_order_matters_and_a_failure_never_clears_what_the_commit_contains(
    results: list[str], chance: random.Random, place: int
) -> None:
    now = after(" ".join(results))
    assert now.weights == pytest.approx(after(" ".join(chance.sample(results, len(results)))).weights)
    assert sum(now.weights) == pytest.approx(1)
    then = after(" ".join([*results, f"{place}-"]))
    assert sum(then.weights[: place + 1]) >= sum(now.weights[: place + 1]) - 1e-9


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


def test_earlier_failures_of_the_good_end_speak_against_it_those_before_it_for_chance() -> None:
    graph = CommitGraph.linear(N)
    at_good, before = ([Observation(place, FAIL, "x")] * 3 for place in (0, BEFORE_GOOD))
    older = [posterior_of(graph, count_runs(runs("8- 8- 0+"), "x", earlier)) for earlier in (at_good, [], before)]
    assert older[0].weights[0] > older[1].weights[0]
    assert older[2].background > older[1].background


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
    for signatures, target in (("a#1 a#1 a#2", "a#1"), ("a#1 a#2 a#3", "a"), ("a#1 a#2", "a#1")):
        varying = [Observation(8, FAIL, signature, failure_kind="a") for signature in signatures.split()]
        assert most_frequent_failure(8, varying) == target, "the kind, where the evidence varies from run to run"
