"""When a row gets another attempt, and what several rows say together."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ci_tasks.flows.course import STOPPED, Course, Policy, statuses
from ci_tasks.flows.site import Site
from ci_tasks.flows.stations import Station
from ci_tasks.model import HostSpec, Row
from ci_tasks.plan.capacity import HostFacts

ROW = Row(
    label="ckpt",
    job="e2e-test-ckpt",
    trigger=None,
    row="tiny",
    test="tests/t.py",
    args="",
    gpus=4,
    image=None,
    env={},
    runner="self-hosted",
    timeout_minutes=None,
)


class Somewhere:
    """As much of a site as a station speaks of."""

    def __init__(self, name: str) -> None:
        self.spec = HostSpec(name=name, runtime="none", gpus=8)


def station(name: str, gpus: int = 8, problem: str = "") -> Station:
    return Station(cast(Site, Somewhere(name)), code=cast(Any, None), facts=HostFacts(gpus=gpus), problem=problem)


def ended(host: str, status: str) -> dict[str, Any]:
    return {"id": "b.01", "host": host, "status": status, "reason": "why"}


# policy, how the attempts on a, b, … ended, whether there is another attempt after the last of them
CASES = {
    "blocked on one host, another is there": (Policy(), ["blocked"], True),
    "lost with its host": (Policy(), ["lost"], True),
    "blocked everywhere": (Policy(), ["blocked", "blocked"], False),
    "failed": (Policy(), ["failed"], False),
    "vacuous": (Policy(), ["vacuous"], False),
    "cancelled": (Policy(), ["cancelled"], False),
    "passed": (Policy(), ["passed"], False),
    "failed, and that is to be tried again": (Policy(retry_failed=True), ["failed"], True),
    "failed twice": (Policy(retry_failed=True), ["failed", "failed"], False),
    "blocked, then failed": (Policy(), ["blocked", "failed"], False),
    "blocked, then failed where it may be tried again": (Policy(retry_failed=True), ["blocked", "failed"], True),
}


@pytest.mark.parametrize(("policy", "attempts", "again"), CASES.values(), ids=CASES)
def test_a_row_is_tried_again_only_for_the_environments_sake(policy: Policy, attempts: list[str], again: bool) -> None:
    hosts = [station("a"), station("b")]
    course = Course(0, ROW, 60.0)
    for host, status in zip(hosts, attempts, strict=False):
        tried = course.try_again(ended(host.name, status), hosts, policy)
    assert tried is again
    assert [one["status"] for one in course.earlier] == (attempts if again else attempts[:-1])


def test_a_failed_row_may_be_asked_once_more_on_its_only_host() -> None:
    course = Course(0, ROW, 60.0)
    assert course.try_again(ended("a", "failed"), [station("a")], Policy(retry_failed=True))
    assert course.may_run_on(station("a"))


def test_a_blocked_row_does_not_go_back_to_where_it_was_blocked() -> None:
    course = Course(0, ROW, 60.0)
    assert course.try_again(ended("a", "blocked"), [station("a"), station("b")], Policy())
    assert not course.may_run_on(station("a"))
    assert course.may_run_on(station("b"))


@pytest.mark.parametrize("other", [station("b", gpus=2), station("b", problem="cannot be reached")])
def test_a_host_that_cannot_run_the_row_is_no_second_chance(other: Station) -> None:
    assert not Course(0, ROW, 60.0).try_again(ended("a", "blocked"), [station("a"), other], Policy())


def test_rows_that_another_ones_failure_ended_say_nothing_of_their_own() -> None:
    stopped = {"status": "cancelled", STOPPED: True}
    assert statuses([{"status": "failed"}, stopped]) == ["failed"]
    assert statuses([{"status": "passed", STOPPED: True}, {"status": "failed"}]) == ["passed", "failed"]
    assert statuses([{"status": "cancelled"}, {"status": "failed"}]) == ["cancelled", "failed"]
