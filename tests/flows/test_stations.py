"""The hosts of a command: who takes part, who does not and why, and what a command does without them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.flows import stations as module
from ci_tasks.flows.stations import Needs, Station, Stations, survey
from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts import holders
from ci_tasks.model import HostSpec
from ci_tasks.plan.capacity import HostFacts

simulated = sys.modules["ci_tasks_tests_simulated"]
Act = simulated.Act

if TYPE_CHECKING:
    from tests.flows.simulated import World

Make = Callable[..., "World"]


def test_the_ready_hosts_begin_whatever_the_others_do(played: Make) -> None:
    world = played({"a": 4, "slow": 4}, {"one": 4, "two": 4})
    world.hosts["slow"].busy = True  # it never even connects
    done = world.perform()
    assert {record["host"] for record in done.records} == {"a"}
    assert done.exit_code == 0


def test_a_host_that_cannot_be_reached_takes_no_part_and_is_named(played: Make) -> None:
    world = played({"a": 4, "gone": 8}, {"one": 4, "wide": 8})
    world.hosts["gone"].reachable = False
    done = world.perform()
    assert "gone takes no part: gone cannot be reached" in world.view.said
    assert {record["row"]: record["status"] for record in done.records} == {"one": "passed", "wide": "blocked"}
    assert "a: 8 GPUs (found 4); gone: gone cannot be reached" in done.records[1]["reason"]
    assert done.sites == {"a": 4}


def test_where_no_host_can_be_reached_every_row_is_blocked_with_the_reasons(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    for host in world.hosts.values():
        host.reachable = False
    done = world.perform()
    assert [record["status"] for record in done.records] == ["blocked", "blocked"]
    assert all("a: a cannot be reached; b: b cannot be reached" in record["reason"] for record in done.records)
    assert done.exit_code == 125


def test_with_one_host_what_is_wrong_there_ends_the_command(played: Make) -> None:
    world = played({"a": 4}, {"one": 4})
    world.hosts["a"].reachable = False
    with pytest.raises(Blocked, match="a cannot be reached"):
        world.perform()


def test_a_host_whose_install_steps_fail_leaves_its_rows_to_the_others(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    world.hosts["a"].problem = "install steps: pip ended with 1"
    done = world.perform()
    assert {record["host"] for record in done.records} == {"b"}
    assert "a takes no part: install steps: pip ended with 1" in world.view.said


def test_a_bug_of_one_host_is_no_end_of_the_others(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4})
    whole = simulated.Played.facts

    def facts(self: Any, **wanted: Any) -> Any:
        if self.spec.name == "a":
            raise KeyError("nothing")
        return whole(self, **wanted)

    monkeypatch.setattr(simulated.Played, "facts", facts)
    done = world.perform()
    assert done.records[0]["host"] == "b"
    assert "a takes no part: KeyError('nothing')" in world.view.said


def test_a_host_that_was_away_for_too_long_keeps_no_row_waiting(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.01)
    monkeypatch.setattr(module, "GIVE_UP", 0.05)
    world = played({"a": 8, "b": 4}, {"wide": 8, "next": 8})
    a = world.hosts["a"]
    world.acts["wide", "a"] = Act(seconds=0.3)
    world.when(
        (lambda: world.runs("wide")() or world.runs("next")(), lambda: setattr(a, "up", False)),
        (lambda: "blocked" in [lane.state for lane in world.view.rows.values()], lambda: setattr(a, "up", True)),
    )
    done = world.perform()
    assert sorted(record["status"] for record in done.records) == ["blocked", "passed"]
    assert any(line.startswith("a takes no part: no link for") for line in world.view.said)


def test_a_host_that_falls_silent_while_it_is_asked_keeps_nobody_at_the_end(
    played: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.01)
    monkeypatch.setattr(module, "_LAST_WORDS", 1000.0)
    world = played({"a": 2, "b": 4}, {"one": 4})
    a = world.hosts["a"]
    world.acts["one", "b"] = Act(seconds=simulated.ENDLESS)
    world.when(
        (lambda: world.runs("one")() and world.seen[0].asked, lambda: setattr(a, "silent", True)),
        (lambda: world.seen[0].waits, lambda: setattr(a, "up", False)),
        (lambda: True, world.end_all),
    )
    assert world.perform().exit_code == 0


def test_all_hosts_get_one_tree(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4})
    trees = iter("12")
    whole = world._open

    def edited_meanwhile(spec: HostSpec) -> Any:
        world.tree = next(trees) * 40
        return whole(spec)

    world._open = edited_meanwhile  # type: ignore[method-assign]
    with pytest.raises(CheckoutError, match="changed while it was recorded"):
        world.perform()
    assert all(site.closed.is_set() for site in world.seen)


def test_every_connection_is_closed_at_the_end(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4})
    world.perform()
    assert [site.closed.is_set() for site in world.seen] == [True, True]


class Asked:
    """As much of a site as is asked."""

    queues = False

    def __init__(self, spec: HostSpec, answers: dict[str, Answer]) -> None:
        self.spec, self.answers, self.asked = spec, answers, list[str]()

    def ask(self, questions: Any, timeout: float) -> dict[str, Answer]:
        self.asked += questions
        return {name: answer for name, answer in self.answers.items() if name in questions}


class Docker(Asked):
    """A host with docker, to which nothing of a run comes."""

    is_up = True

    def facts(self, **wanted: Any) -> HostFacts:
        return HostFacts(gpus=8)

    def python(self, wanted: str) -> tuple[str, str]:
        return "python3", "3.11"

    @contextmanager
    def ready(self, *given: Any) -> Iterator[None]:
        yield None


def brought(pull: str | None, answers: dict[str, Answer]) -> tuple[Station, list[str], list[str]]:
    """The station when it is ready, what it was asked, and what was said."""
    site: Any = Docker(HostSpec("a", runtime="docker", pull=pull, simulate=True), answers)
    station = Station(site, code=site)
    images = {"x:1": ("one", "two"), "y:2": ("three",)}
    needs = Needs(gpus=8, container=True, simulates=True, python="", images=images, setups=lambda station: [])
    with Stations([station], needs, False) as hosts:
        while not station.is_ready:
            time.sleep(0.001)
        return station, site.asked, hosts.said()


HERE, ABSENT = Answer(0, "sha256:1"), Answer(1, "", "No such image")


def test_an_image_that_a_host_lacks_is_pulled_once_before_its_rows_come() -> None:
    station, asked, said = brought(None, {"image x:1": HERE, "image y:2": ABSENT, "y:2": Answer(0)})
    assert asked == ["image x:1", "image y:2", "y:2"]
    assert said == ["a: pulling y:2"]
    assert station.images == {"x:1", "y:2"}
    assert not station.without


def test_rows_whose_image_cannot_be_had_need_not_go_there() -> None:
    refused = Answer(1, "", "manifest unknown")
    station, _, _ = brought("always", {"image x:1": ABSENT, "image y:2": ABSENT, "x:1": refused, "y:2": Answer(0)})
    assert station.without == dict.fromkeys(("one", "two"), "image x:1: manifest unknown")


def test_a_host_that_is_not_to_pull_does_not() -> None:
    _, asked, _ = brought("never", {"image x:1": ABSENT, "image y:2": ABSENT})
    assert asked == ["image x:1", "image y:2"]


@pytest.mark.parametrize(
    ("spec", "asked", "images"),
    [
        (HostSpec("a", runtime="docker"), [holders.LOCKS_QUESTION, "image x:1", "image y:2"], {"x:1"}),
        (HostSpec("a", runtime="none"), [holders.LOCKS_QUESTION], set()),
        (HostSpec("a", runtime="none", simulate=True), [], set()),
    ],
)
def test_a_host_is_asked_for_what_matters_there(spec: HostSpec, asked: list[str], images: set[str]) -> None:
    site: Any = Asked(spec, {"image x:1": Answer(0, "sha256:1"), "image y:2": Answer(1, "", "No such image")})
    found = survey(Station(site, code=site), ["x:1", "y:2"])
    assert site.asked == asked
    assert found.images == images
