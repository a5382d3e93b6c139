"""How rows and hosts are told to the placement, and when it is asked again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.flows import allotting
from ci_tasks.flows.allotting import Allotment
from ci_tasks.flows.course import Course
from ci_tasks.flows.lanes import host_lanes
from ci_tasks.flows.stations import Station
from ci_tasks.model import HostSpec, Row
from ci_tasks.plan.capacity import HostFacts
from ci_tasks.plan.schedule import Decision, Machine, Task

simulated = sys.modules["ci_tasks_tests_simulated"]

if TYPE_CHECKING:
    from tests.flows.simulated import World

Make = Callable[..., "World"]


class Given:
    """What an Allotment needs of a prepared command; no plan names anything that rows cannot share."""

    class request:
        image = None

    def __init__(self, rows: Sequence[Row], stations: Sequence[Station]) -> None:
        self.rows, self.stations, self.drafts = tuple(rows), tuple(stations), self

    def exclusive(self, row: Row, station: Station) -> tuple[str, ...]:
        return ()


def row(name: str, gpus: int) -> Row:
    return Row("l", "j", None, name, f"tests/{name}.py", "", gpus, None, {}, "self-hosted", None)


def station(name: str, gpus: int) -> Station:
    host = simulated.Host(name, gpus, {})
    site = simulated.Played(HostSpec(name, runtime="none", gpus=gpus), host, "t")
    return Station(site, simulated.TreeCode(Path("/checkout"), "t"), HostFacts(gpus=gpus), is_ready=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Task], list[Machine]]]:
    """What the placement was asked; it starts nothing."""
    questions: list[tuple[list[Task], list[Machine]]] = []

    def place(waiting: Any, machines: Any) -> Decision:
        questions.append((list(waiting), list(machines)))
        return Decision((), {}, 0.0)

    monkeypatch.setattr(allotting, "place", place)
    return questions


def allotment(stations: list[Station], gpus: list[int], jobs: int | None = None) -> tuple[Allotment, list[Course]]:
    courses = [Course(at, row(f"r{at}", wanted), 60.0) for at, wanted in enumerate(gpus)]
    given: Any = Given([course.row for course in courses], stations)
    return Allotment(given, courses, jobs), courses


def test_a_row_is_offered_the_hosts_that_can_run_it_and_have_not_ended_it(asked: Any) -> None:
    hosts = [station("a", 8), station("b", 8), station("narrow", 2)]
    allotted, courses = allotment(hosts, [4, 4])
    courses[1].earlier.append({"host": "a", "status": "blocked"})
    allotted.decide(courses)
    ((waiting, machines),) = asked
    assert [task.hosts for task in waiting] == [("a", "b"), ("b",)]
    assert [(machine.name, machine.gpus) for machine in machines] == [("a", 8), ("b", 8), ("narrow", 2)]


def test_gpus_that_others_hold_are_those_which_are_not_our_rows(asked: Any) -> None:
    hosts = [station("a", 8), station("b", 8)]
    allotted, courses = allotment(hosts, [4, 2])
    hosts[0].locked = frozenset(range(6))
    prepared: Any = object()
    courses[0].prepared, courses[0].station = prepared, hosts[0]
    allotted.decide([courses[1]])
    ((_, machines),) = asked
    assert [machine.held for machine in machines] == [2, 0]
    assert [[running.task.name for running in machine.running] for machine in machines] == [["r0"], []]
    assert [machine.has_code for machine in machines] == [True, False]


def test_a_host_that_is_away_is_told_so_but_for_the_only_one(asked: Any) -> None:
    for hosts in ([station("a", 8), station("b", 8)], [station("a", 8)]):
        hosts[0].site.host.up = False  # type: ignore[attr-defined]
        allotted, courses = allotment(hosts, [4])
        allotted.decide(courses)
    assert [[machine.up for machine in machines] for _, machines in asked] == [[False, True], [True]]


def test_jobs_bounds_the_rows_on_each_host(asked: Any) -> None:
    allotted, courses = allotment([station("a", 8), station("b", 8)], [1], jobs=3)
    allotted.decide(courses)
    assert [machine.slots for machine in asked[0][1]] == [3, 3]


@pytest.mark.parametrize("change", ["locks", "link", "problem", "a row"])
def test_the_placement_is_asked_again_when_something_has_happened(change: str) -> None:
    host = station("a", 8)
    allotted, _ = allotment([host, station("b", 8)], [4])
    assert allotted.has_changed()
    assert not allotted.has_changed()
    if change == "locks":
        host.locked = frozenset({1})
    elif change == "link":
        host.site.host.up = False  # type: ignore[attr-defined]
    elif change == "problem":
        host.problem = "gone"
    else:
        allotted.forget()
    assert allotted.has_changed()
    assert not allotted.has_changed()


def test_a_row_is_hopeless_when_no_host_is_left_and_not_while_one_has_not_answered(asked: Any) -> None:
    late = station("late", 8)
    late.facts = None
    allotted, courses = allotment([station("a", 2), late], [4])
    assert not allotted.is_hopeless(courses[0])
    late.problem = "cannot be reached"
    assert allotted.is_hopeless(courses[0])


def test_the_lane_of_a_host_shows_gpus_that_others_hold_and_not_our_own() -> None:
    hosts = [station("a", 8), station("b", 8)]
    _, courses = allotment(hosts, [4, 2])
    hosts[0].locked = hosts[1].locked = frozenset(range(6))
    prepared: Any = object()
    courses[0].prepared, courses[0].station = prepared, hosts[0]
    assert [(lane.name, lane.gpus, lane.held, lane.up) for lane in host_lanes(hosts, courses)] == [
        ("a", 8, 2, True),
        ("b", 8, 6, True),
    ]
