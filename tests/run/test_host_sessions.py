"""The hosts of a command: who takes part, who does not and why, and what a command does without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ci_tasks.errors import Blocked
from ci_tasks.run import prepare as module
from ci_tasks.run.prepare import HostSession, HostThreads
from tests.run import simulated
from tests.run.simulated import Act, World

Make = Callable[..., World]


def test_a_host_that_cannot_be_reached_takes_no_part_and_is_named(played: Make) -> None:
    world = played({"a": 4, "gone": 8}, {"one": 4, "wide": 8})
    world.hosts["gone"].reachable = False
    done = world.execute_label()
    assert world.view.hosts["gone"].note == "gone cannot be reached"
    assert {record.row: record.status for record in done.runs} == {"one": "passed", "wide": "blocked"}
    assert "a: 8 GPUs (found 4); gone: gone cannot be reached" in done.runs[1].reason


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
    assert [record.status for record in done.runs] == ["passed", "passed", "blocked"]
    assert world.hosts["old"].began == []
    assert "old: Python >=3.10, as the checkout requires (found 3.9.2: `python3`, or ci" in done.runs[2].reason


def test_a_host_whose_install_steps_fail_leaves_its_rows_to_the_others(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    world.hosts["a"].problem = "install steps: pip ended with 1"
    done = world.execute_label()
    assert {record.host for record in done.runs} == {"b"}
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
    assert done.runs[0].host == "b"
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
    assert sorted(record.status for record in done.runs) == ["blocked", "passed"]
    assert "a: not reachable for 0.001 min;" in next(rec.reason for rec in done.runs if rec.status == "blocked")
    assert any(line.startswith("dropping host a: not reachable") for line in world.view.messages)


def test_the_only_host_that_is_away_for_too_long_blocks_its_rows_with_the_reason(played: Make) -> None:
    world = played({"a": 4}, {"one": 4, "two": 4})
    world.acts["one", "a"] = Act(seconds=0.1)
    a = world.hosts["a"]
    world.when((world.runs("one"), lambda: setattr(a, "up", False)))
    world.when((lambda: world.view.rows["two"].state == "blocked", lambda: setattr(a, "up", True)))
    done = world.execute_label(give_up=0.001)
    assert [record.status for record in done.runs] == ["passed", "blocked"]
    assert done.runs[1].reason.startswith("not reachable for 0.001 min;")


@pytest.mark.parametrize("stage", ["busy", "installs"])
def test_no_row_waits_for_a_host_that_is_not_ready_for_too_long(played: Make, stage: str) -> None:
    world = played({"a": 8, "b": 4}, {"wide": 8, "small": 4})
    setattr(world.hosts["a"], stage, True)
    done = world.execute_label(give_up=0.01)
    assert {record.row: record.status for record in done.runs} == {"wide": "blocked", "small": "passed"}
    activity = "connecting" if stage == "busy" else "install steps"
    assert f"a: not ready ({activity}) for 0.01 min; --give-up MINUTES waits longer" in done.runs[0].reason


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
    assert [record.status for record in world.execute_label().runs] == ["passed", "passed"]


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
