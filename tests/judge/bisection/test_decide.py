"""A whole search, on histories that are simulated: data in, decisions out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import log2
from statistics import mean

import pytest

from ci_tasks.judge.bisection import decide as ways
from ci_tasks.judge.bisection.decide import Decision, Found, Question, Refused, Run, Unclear, decide
from ci_tasks.judge.bisection.evidence import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.judge.bisection.lineage import Lineage

SIDE = [[0], [0], [1], [2], [3, 4], [5], [6]]  # 1─3 and 2─4, merged by 5, then 6 and 7


@dataclass
class World:
    """A history whose row fails at `rate` in every commit that contains the culprit; `gaps` are commits that say
    something else, whatever happens."""

    lineage: Lineage
    culprit: int
    rate: float = 1.0
    gaps: Mapping[int, Observation] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, position: int) -> Observation:
        if position in self.gaps:
            return self.gaps[position]
        affected = self.lineage.descendants[self.culprit] >> position & 1
        fails = affected and self.random.random() < self.rate
        return Observation(position, FAIL, "x") if fails else Observation(position, PASS)


@dataclass
class Search:
    end: Decision
    seen: list[Observation]
    rounds: int


def search(world: World, hosts: int = 1, target: str = "", repeat: int = 0) -> Search:
    question, rounds = Question(world.lineage, target, repeat), 0
    seen: list[Observation] = []
    while isinstance(decision := decide(question, seen, hosts), Run):
        assert 0 < len(decision.positions) <= hosts
        rounds += 1
        seen += [world.run(position) for position in decision.positions]
        assert len(seen) < 2 * ways.MOST_RUNS, "it has to end"
    return Search(decision, seen, rounds)


def gaps(places: Collection[int], kind: str, signature: str = "") -> dict[int, Observation]:
    return {place: Observation(place, kind, signature) for place in places}


def is_found(found: Search, culprit: int) -> bool:
    return isinstance(found.end, Found) and found.end.position == culprit


@pytest.mark.parametrize("culprit", range(1, 65, 7))
def test_a_failure_that_always_shows_costs_a_plain_bisection_and_a_few_runs_of_the_ends(culprit: int) -> None:
    found = search(World(Lineage.line(64), culprit))
    assert is_found(found, culprit)
    assert len(found.seen) <= log2(64) + 8


@pytest.mark.parametrize("culprit", range(1, 8))
def test_a_culprit_on_a_side_branch_is_found_too(culprit: int) -> None:
    assert is_found(search(World(Lineage(SIDE), culprit)), culprit)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_histories_end_as_well(length: int) -> None:
    assert is_found(search(World(Lineage.line(length), length)), length)


def test_a_culprit_that_fails_in_three_runs_of_ten_is_found_in_nine_tries_of_ten() -> None:
    tries = [search(World(Lineage.line(64), 1 + 17 * seed % 64, 0.3, seed=seed)) for seed in range(40)]
    right = sum(is_found(found, 1 + 17 * seed % 64) for seed, found in enumerate(tries))
    assert right >= 36
    assert max(len(found.seen) for found in tries) < ways.MOST_RUNS


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_four_hosts_take_at_most_half_the_rounds(rate: float) -> None:
    def rounds(hosts: int) -> float:
        return mean(search(World(Lineage.line(64), 1 + 23 * s % 64, rate, seed=s), hosts).rounds for s in range(12))

    assert rounds(4) <= rounds(1) / 2


@pytest.mark.parametrize(
    ("kind", "signature"),
    [(FAIL, "another"), (BLOCKED, ""), (MISSING, "")],
    ids=["another failure", "blocked", "no row"],
)
def test_commits_that_say_nothing_are_passed_over(kind: str, signature: str) -> None:
    found = search(World(Lineage.line(64), 20, gaps=gaps(range(24, 50), kind, signature)))
    assert is_found(found, 20)
    asked = Counter(one.position for one in found.seen if one.position in range(24, 50))
    assert asked and max(asked.values()) <= (1 if kind == MISSING else ways.TRIES)


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("kind", [FAIL, BLOCKED, MISSING])
def test_where_only_untestable_commits_are_left_they_are_the_answer(rate: float, kind: str) -> None:
    found = search(World(Lineage.line(32), 12, rate, gaps=gaps((10, 11, 12, 13), kind, "another"), seed=3))
    assert isinstance(found.end, Unclear)
    assert not found.end.apart
    assert [place for place, _ in found.end.left] == [10, 11, 12, 13, 14]
    assert len(found.seen) < ways.MOST_RUNS / 2


def test_a_commit_that_said_nothing_once_is_tried_again_where_it_matters() -> None:
    world = World(Lineage.line(8), 4)
    seen = [Observation(place, FAIL, "x") for place in (8, 8, 8, 5)] + [Observation(0, PASS), Observation(3, PASS)] * 2
    decision = decide(Question(world.lineage), [*seen, Observation(4, BLOCKED)])
    assert decision == Run((4,))


@pytest.mark.parametrize(
    ("world", "target", "why"),
    [
        (World(Lineage.line(8), 8, 0.0), "", ways.NEVER_FAILS),
        (World(Lineage.line(8), 0), "", ways.FAILS_AT_GOOD),
        (World(Lineage.line(8), 0, 0.3, seed=1), "", ways.FAILS_AT_GOOD),
        (World(Lineage.line(8), 4, gaps=gaps([0], FAIL, "another")), "", ways.GOOD_UNTESTABLE),
        (World(Lineage.line(8), 4, gaps=gaps([0], MISSING)), "", ways.GOOD_UNTESTABLE),
        (World(Lineage.line(8), 4, gaps=gaps([8], MISSING)), "", ways.BAD_UNTESTABLE),
        (World(Lineage.line(8), 4), "never seen", ways.BAD_UNTESTABLE),
    ],
)
def test_ends_that_are_not_what_they_were_said_to_be_are_refused(world: World, target: str, why: str) -> None:
    assert search(world, target=target).end == Refused(why)


def test_a_rare_failure_of_a_good_commit_does_not_mislead() -> None:
    found = search(World(Lineage.line(32), 20, gaps=gaps([], PASS)))
    by_chance = [*found.seen, Observation(6, FAIL, "x")]
    decision = decide(Question(Lineage.line(32)), by_chance)
    assert isinstance(decision, Run), "not certain any more"
    world, seen = World(Lineage.line(32), 20), list(by_chance)
    while isinstance(decision := decide(Question(world.lineage), seen), Run):
        seen += [world.run(position) for position in decision.positions]
    assert isinstance(decision, Found) and decision.position == 20


def test_a_person_decides_how_often_a_commit_has_to_pass() -> None:
    found = search(World(Lineage.line(16), 9), repeat=4)
    passes = {place: sum(one.position == place for one in found.seen) for place in range(1, 9)}
    assert is_found(found, 9)
    assert {count for count in passes.values() if count} == {4}
    assert sum(one.position in range(9, 16) for one in found.seen) <= 4, "a failure needs no second"


@pytest.mark.parametrize(("then", "again"), [(PASS, True), (FAIL, False)])
def test_a_commit_that_failed_after_all_needs_no_more_passes(then: str, again: bool) -> None:
    seen = [Observation(16, FAIL, "x"), Observation(16, PASS), Observation(0, PASS)] * 8
    seen += [Observation(2, PASS), Observation(2, then, "x" if then == FAIL else "")]
    assert (decide(Question(Lineage.line(16), repeat=4), seen) == Run((2,))) == again


def test_runs_of_the_good_end_are_as_many_as_the_rate_of_the_failure_asks_for() -> None:
    always, rarely = (search(World(Lineage.line(32), 16, rate, seed=5)).seen for rate in (1.0, 0.2))
    assert sum(one.position == 0 for one in always) <= 2
    assert sum(one.position == 0 for one in rarely) >= 4


def test_a_search_that_takes_too_long_says_what_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "MOST_RUNS", 30)
    found = search(World(Lineage.line(64), 20, 0.2, seed=2))
    assert isinstance(found.end, Unclear)
    assert found.end.apart
    assert sum(chance for _, chance in found.end.left) > ways.CERTAIN


def test_the_same_runs_decide_the_same() -> None:
    found = search(World(Lineage.line(64), 30, 0.3, seed=9), hosts=3)
    question = Question(Lineage.line(64))
    for count in range(0, len(found.seen), 10):
        assert decide(question, found.seen[:count], 3) == decide(question, list(found.seen[:count]), 3)
