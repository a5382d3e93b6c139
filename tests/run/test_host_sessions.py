"""The hosts of a command: who takes part, who does not and why, and what a command does without them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.hosts.queries import LOCKS_QUERY_NAME
from ci_tasks.planning.placement import HostFacts
from ci_tasks.run import prepare as module
from ci_tasks.run.prepare import HostThreads
from ci_tasks.run.row_plans import HostSession
from ci_tasks.workflow.model import Row
from tests.run import simulated
from tests.run.simulated import Act, World

Make = Callable[..., World]


def test_a_host_that_cannot_be_reached_takes_no_part_and_is_named(played: Make) -> None:
    world = played({"a": 4, "gone": 8}, {"one": 4, "wide": 8})
    world.hosts["gone"].reachable = False
    done = world.execute_label()
    assert world.view.hosts["gone"].note == "gone cannot be reached"
    assert {record.row: record.status for record in done.records} == {"one": "passed", "wide": "blocked"}
    assert "a: 8 GPUs (found 4); gone: gone cannot be reached" in done.records[1].reason


def test_with_one_host_what_is_wrong_there_ends_the_command(played: Make) -> None:
    world = played({"a": 4}, {"one": 4})
    world.hosts["a"].reachable = False
    with pytest.raises(Blocked, match="a cannot be reached"):
        world.execute_label()


def test_no_row_goes_to_a_host_whose_python_the_checkout_excludes(played: Make) -> None:
    world = played({"old": 8, "new": 4}, {"one": 4, "two": 4, "wide": 8})
    (world.checkout / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.10"\n')
    world.hosts["old"].python = "3.9.2"
    done = world.execute_label()
    assert [record.status for record in done.records] == ["passed", "passed", "blocked"]
    assert world.hosts["old"].began == []
    assert "old: Python >=3.10, as the checkout requires (found 3.9.2)" in done.records[2].reason


def test_a_host_whose_install_steps_fail_leaves_its_rows_to_the_others(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    world.hosts["a"].problem = "install steps: pip ended with 1"
    done = world.execute_label()
    assert {record.host for record in done.records} == {"b"}
    assert world.view.hosts["a"].note == "install steps: pip ended with 1"


def test_a_bug_of_one_host_is_no_end_of_the_others(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4})
    whole = simulated.Played.facts

    def facts(self: Any, **requested: Any) -> Any:
        if self.spec.name == "a":
            raise KeyError("nothing")
        return whole(self, **requested)

    monkeypatch.setattr(simulated.Played, "facts", facts)
    done = world.execute_label()
    assert done.records[0].host == "b"
    assert world.view.hosts["a"].note == "KeyError: 'nothing'"


def test_no_row_waits_for_a_host_that_was_away_for_too_long(played: Make) -> None:
    world = played({"a": 8, "b": 4}, {"wide": 8, "next": 8})
    a = world.hosts["a"]
    world.acts["wide", "a"] = Act(seconds=0.3)
    world.when(
        (lambda: world.runs("wide")() or world.runs("next")(), lambda: setattr(a, "up", False)),
        (lambda: "blocked" in [lane.state for lane in world.view.rows.values()], lambda: setattr(a, "up", True)),
    )
    done = world.execute_label(give_up=0.001)
    assert sorted(record.status for record in done.records) == ["blocked", "passed"]
    assert "a: not reachable for 0.001 min;" in next(rec.reason for rec in done.records if rec.status == "blocked")
    assert any(line.startswith("dropping host a: not reachable") for line in world.view.messages)


def test_the_only_host_that_is_away_for_too_long_blocks_its_rows_with_the_reason(played: Make) -> None:
    world = played({"a": 4}, {"one": 4, "two": 4})
    world.acts["one", "a"] = Act(seconds=0.1)
    a = world.hosts["a"]
    world.when((world.runs("one"), lambda: setattr(a, "up", False)))
    world.when((lambda: world.view.rows["two"].state == "blocked", lambda: setattr(a, "up", True)))
    done = world.execute_label(give_up=0.001)
    assert [record.status for record in done.records] == ["passed", "blocked"]
    assert done.records[1].reason.startswith("not reachable for 0.001 min;")


@pytest.mark.parametrize("stage", ["busy", "installs"])
def test_no_row_waits_for_a_host_that_is_not_ready_for_too_long(played: Make, stage: str) -> None:
    world = played({"a": 8, "b": 4}, {"wide": 8, "small": 4})
    setattr(world.hosts["a"], stage, True)
    done = world.execute_label(give_up=0.01)
    assert {record.row: record.status for record in done.records} == {"wide": "blocked", "small": "passed"}
    activity = "connecting" if stage == "busy" else "install steps"
    assert f"a: not ready ({activity}) for 0.01 min; --give-up MINUTES waits longer" in done.records[0].reason


def test_a_host_that_is_away_for_a_moment_keeps_its_rows(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.01)
    world = played({"a": 8, "b": 4}, {"wide": 8, "next": 8})
    a, refresh, missed = world.hosts["a"], HostThreads._refresh, list[str]()

    def count(self: HostThreads, session: HostSession) -> None:
        if not a.up and session.name == "a":
            missed.append(session.name)
        refresh(self, session)

    monkeypatch.setattr(HostThreads, "_refresh", count)
    world.acts["wide", "a"] = Act(seconds=0.3)
    world.when(
        (lambda: world.runs("wide")() or world.runs("next")(), lambda: setattr(a, "up", False)),
        (lambda: len(missed) > 3, lambda: setattr(a, "up", True)),
    )
    assert [record.status for record in world.execute_label().records] == ["passed", "passed"]


def test_a_host_that_falls_silent_while_it_is_asked_keeps_nobody_at_the_end(
    played: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(module, "_SHUTDOWN_SECONDS", 1000.0)
    world = played({"a": 2, "b": 4}, {"one": 4})
    a = world.hosts["a"]
    world.acts["one", "b"] = Act(seconds=simulated.ENDLESS)
    world.when(
        (lambda: world.runs("one")() and world.executors[0].was_queried, lambda: setattr(a, "silent", True)),
        (lambda: world.executors[0].waits, lambda: setattr(a, "up", False)),
        (lambda: True, world.end_all),
    )
    assert world.execute_label().exit_code == 0


def test_all_hosts_get_one_tree(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4})
    trees = iter("12")
    whole = world._open

    def edited_meanwhile(spec: HostSpec) -> Any:
        world.tree = next(trees) * 40
        return whole(spec)

    world._open = edited_meanwhile  # type: ignore[method-assign]
    with pytest.raises(CheckoutError, match="changed while it was recorded"):
        world.execute_label()
    assert all(executor.closed.is_set() for executor in world.executors)


class Docker:
    """A host with docker, to which nothing of a run comes; what it has been asked."""

    is_up, has_scheduler = True, False

    def __init__(self, spec: HostSpec, answers: dict[str, QueryAnswer]) -> None:
        self.spec, self.answers, self.queried = spec, answers, list[str]()

    def run_queries(self, queries: Any, timeout: float) -> dict[str, QueryAnswer]:
        self.queried += queries
        return {name: answer for name, answer in self.answers.items() if name in queries}

    def run_install_steps(self, *args: Any) -> None:
        pass


def planner() -> Any:
    """As much of a RowPlanner as a host needs: two rows in images of their own."""
    rows = [Row("l", "j", None, image, None, "", 8, image, {}, "gpu", None) for image in ("x:1", "y:2")]
    return SimpleNamespace(
        rows=rows,
        request=SimpleNamespace(prefetch=False),
        gather_facts=lambda session: HostFacts(gpus=8),
        image_of=lambda row: row.image,
        setups=lambda session: [],
    )


@pytest.mark.parametrize(
    ("spec", "queries", "images"),
    [
        (HostSpec("a", runtime="docker"), [LOCKS_QUERY_NAME, "image x:1", "image y:2"], {"x:1"}),
        (HostSpec("a", runtime="docker", simulate=True), ["image x:1", "image y:2"], {"x:1"}),
        (HostSpec("a", runtime="none", simulate=True), [], {"x:1", "y:2"}),
    ],
)
def test_a_host_is_asked_for_what_matters_there(spec: HostSpec, queries: list[str], images: set[str]) -> None:
    executor: Any = Docker(
        spec, {"image x:1": QueryAnswer(0, "sha256:1"), "image y:2": QueryAnswer(1, "", "No such image")}
    )
    session = HostSession(executor)
    with HostThreads([session], planner()).running():
        while not session.is_ready:
            time.sleep(0.001)
    assert executor.queried == queries
    assert session.images == images
