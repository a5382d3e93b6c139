"""A whole search, on histories that are simulated: data in, decisions out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import log2
from statistics import mean

import pytest

from ci_tasks.features.failures.bisection import strategy as strategy
from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.observations import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.features.failures.bisection.strategy import (
    BisectionDecision,
    BisectionGoal,
    CulpritFound,
    InvalidRange,
    RunCommits,
    Undecided,
    next_decision,
)

SIDE = [[0], [0], [1], [2], [3, 4], [5], [6]]  # 1─3 and 2─4, merged by 5, then 6 and 7


@dataclass
class World:
    """A history whose row fails at `rate` in every commit that contains the culprit; `gaps` are commits that say
    something else, whatever happens."""

    graph: CommitGraph
    culprit: int
    rate: float = 1.0
    gaps: Mapping[int, Observation] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, position: int) -> Observation:
        if position in self.gaps:
            return self.gaps[position]
        affected = self.graph.descendants[self.culprit] >> position & 1
        fails = affected and self.random.random() < self.rate
        return Observation(position, FAIL, "x") if fails else Observation(position, PASS)


@dataclass
class Search:
    end: BisectionDecision
    observations: list[Observation]
    rounds: int


def search(world: World, hosts: int = 1, target: str = "", repeat: int = 0) -> Search:
    goal, rounds = BisectionGoal(world.graph, target, repeat), 0
    observations: list[Observation] = []
    while isinstance(decision := next_decision(goal, observations, hosts), RunCommits):
        assert 0 < len(decision.positions) <= hosts
        rounds += 1
        observations += [world.run(position) for position in decision.positions]
        assert len(observations) < 2 * strategy.MAX_RUNS, "it has to end"
    return Search(decision, observations, rounds)


def gaps(places: Collection[int], kind: str, signature: str = "") -> dict[int, Observation]:
    return {place: Observation(place, kind, signature) for place in places}


def is_culprit(result: Search, culprit: int) -> bool:
    return isinstance(result.end, CulpritFound) and result.end.position == culprit


FIRST = [(1, [8]), (3, [8, 8, 8]), (4, [8, 8, 8, 0]), (20, [8, 8, 8, 0])]


@pytest.mark.parametrize(("hosts", "positions"), FIRST)
def test_a_search_begins_with_the_bad_end_and_one_run_of_the_good_one(hosts: int, positions: list[int]) -> None:
    decision = next_decision(BisectionGoal(CommitGraph.linear(8)), [], hosts)
    assert isinstance(decision, RunCommits)
    assert list(decision.positions) == positions


@pytest.mark.parametrize("points", [1, 2, 3, 8, 32])
def test_the_cost_that_is_said_before_is_that_of_a_failure_that_always_shows(points: int) -> None:
    """A plain bisection and a few runs of the ends."""
    results = {culprit: search(World(CommitGraph.linear(points), culprit)) for culprit in range(1, points + 1)}
    assert all(is_culprit(result, culprit) for culprit, result in results.items())
    taken = [len(result.observations) for result in results.values()]
    assert max(taken) <= log2(points) + 10
    assert abs(mean(taken) - strategy.runs_of_steady_failure(points)) <= 1
    at_good = {sum(run.position == 0 for run in result.observations) for result in results.values()}
    assert at_good == {strategy.MIN_RUNS_AT_GOOD}


@pytest.mark.parametrize("culprit", range(1, 8))
def test_a_culprit_on_a_side_branch_is_found_too(culprit: int) -> None:
    assert is_culprit(search(World(CommitGraph(SIDE), culprit)), culprit)


def test_a_culprit_that_fails_in_three_runs_of_ten_is_found_in_nine_tries_of_ten() -> None:
    tries = {seed: search(World(CommitGraph.linear(64), 1 + 17 * seed % 64, 0.3, seed=seed)) for seed in range(20)}
    assert sum(is_culprit(result, 1 + 17 * seed % 64) for seed, result in tries.items()) >= 18
    assert max(len(result.observations) for result in tries.values()) < strategy.MAX_RUNS
    assert mean(sum(run.position == 0 for run in result.observations) for result in tries.values()) >= 4


@pytest.mark.parametrize(("kind", "most"), [(FAIL, strategy.MAX_SKIPS), (BLOCKED, strategy.MAX_SKIPS), (MISSING, 1)])
def test_inconclusive_commits_are_skipped(kind: str, most: int) -> None:
    result = search(World(CommitGraph.linear(64), 20, gaps=gaps(range(24, 50), kind, "another")))
    assert is_culprit(result, 20)
    runs = Counter(run.position for run in result.observations if run.position in range(24, 50))
    assert runs and max(runs.values()) <= most


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("kind", [FAIL, BLOCKED, MISSING])
def test_where_only_untestable_commits_are_left_they_are_the_answer(rate: float, kind: str) -> None:
    result = search(World(CommitGraph.linear(32), 12, rate, gaps=gaps((10, 11, 12, 13), kind, "another"), seed=3))
    assert isinstance(result.end, Undecided)
    assert not result.end.distinguishable
    assert [place for place, _ in result.end.left] == [10, 11, 12, 13, 14]
    assert len(result.observations) < strategy.MAX_RUNS / 2


@pytest.mark.parametrize(
    ("world", "target", "why"),
    [
        (World(CommitGraph.linear(8), 8, 0.0), "", strategy.NEVER_FAILS),
        (World(CommitGraph.linear(8), 0), "", strategy.FAILS_AT_GOOD),
        (World(CommitGraph.linear(8), 0, 0.3, seed=1), "", strategy.FAILS_AT_GOOD),
        (World(CommitGraph.linear(8), 4, gaps=gaps([0], FAIL, "another")), "", strategy.GOOD_UNTESTABLE),
        (World(CommitGraph.linear(8), 4, gaps=gaps([8], MISSING)), "", strategy.BAD_UNTESTABLE),
        (World(CommitGraph.linear(8), 4), "never seen", strategy.BAD_UNTESTABLE),
    ],
)
def test_wrong_good_and_bad_ends_are_refused(world: World, target: str, why: str) -> None:
    assert search(world, target=target).end == InvalidRange(why)


def test_a_person_decides_how_often_a_commit_has_to_pass() -> None:
    result = search(World(CommitGraph.linear(16), 9), repeat=4)
    assert is_culprit(result, 9)
    runs = Counter(run.position for run in result.observations)
    assert {runs[place] for place in range(1, 9)} == {0, 4}
    assert sum(runs[place] for place in range(9, 16)) <= 4, "a failure needs no second"


def test_a_search_that_takes_too_long_says_what_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "MAX_RUNS", 30)
    result = search(World(CommitGraph.linear(64), 20, 0.2, seed=2))
    assert isinstance(result.end, Undecided)
    assert result.end.distinguishable
    assert sum(chance for _, chance in result.end.left) > strategy.CERTAIN
