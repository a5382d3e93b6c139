"""Which changed test runs where."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.errors import UnknownName
from ci_tasks.run import label
from ci_tasks.run.checkout_source import RunRequest
from ci_tasks.run.find_rows import JobRows
from ci_tasks.run.label import changed_runs
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row

REQUEST = RunRequest("changed", host="h100a", image="a/b", prefetch=True)


def row(label: str, name: str, gpus: int, image: str | None = None) -> Row:
    return Row(label, label, None, name, f"tests/test_{name}.py", "", gpus, image, {}, "self-hosted", None)


CPU = [row("cpu-unittest", "rewards", 0), row("cpu-unittest", "metrics", 0), row("agent-test", "tools", 0)]
ALL = [*CPU, row("megatron", "ppo", 8, "a/b"), row("image", "rewards", 0, "a/b")]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """runs(names, …) → the runs of a change that touches these tests."""

    def changed(names: str, **request: Any) -> list[RunRequest]:
        found = [row("changed", name, 8, "a/b") for name in names.split()]
        monkeypatch.setattr(label, "find_rows", lambda *_: JobRows(Job("changed", 1), found, EventContext()))
        monkeypatch.setattr(label, "list_jobs", lambda _: ALL)
        monkeypatch.setattr(label, "event_context", lambda _: EventContext())
        suite = SimpleNamespace(is_changed=lambda _: True)
        given = SimpleNamespace(outputs={})
        source: Any = SimpleNamespace(headline="checkout: here", path="/here", suite=suite, given=given)
        return changed_runs(source, replace(REQUEST, **request))

    return changed


def test_every_cpu_label_is_one_run_on_this_machine_and_the_rest_one_on_the_host_that_was_asked_for(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    here, agent, there = runs("rewards tools ppo")
    assert here == replace(
        REQUEST, label="cpu-unittest", rows=("rewards",), host="local", image=None, prefetch=False
    ), "image has that test too, in a container"
    assert (agent.label, agent.rows, agent.host) == ("agent-test", ("tools",), "local")
    assert there == replace(REQUEST, rows=("ppo",))
    assert capsys.readouterr().out.splitlines() == [
        "changed: rewards of cpu-unittest on local",
        "changed: tools of agent-test on local",
        "changed: ppo of changed on h100a",
    ]


def test_without_a_changed_test_nothing_runs_and_the_reason_is_said(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs("") == []
    assert "vacuous: label changed has no row: no test file is new or modified" in capsys.readouterr().out


def test_only_selects_among_both_and_names_what_there_is(runs: Any) -> None:
    assert [run.rows for run in runs("rewards ppo", only="ppo")] == [("ppo",)]
    with pytest.raises(UnknownName, match="unknown row 'pppo' in label changed"):
        runs("rewards ppo", only="pppo")
