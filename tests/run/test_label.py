"""Which changed test runs where, and how long rows are expected to take."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.errors import UnknownName
from ci_tasks.run import label
from ci_tasks.run.find_rows import JobRows
from ci_tasks.run.label import changed_runs
from ci_tasks.run.request import RunRequest
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
        "checkout: here",
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


# -- how long rows are expected to take --------------------------------------------------------------------------------

SECONDS = {"ppo": 100.0, "ckpt": 200.0}
HISTORY = {(): SECONDS, ("a",): {"ppo": 50.0, "ckpt": 100.0}, ("b",): {"ppo": 400.0, "ckpt": 800.0}}


def expected(names: str, history: Any, simulates: bool = False) -> float:
    """The seconds of the row `ppo` on these hosts, and how fast each of them is."""
    sessions = [SimpleNamespace(name=name, spec=SimpleNamespace(simulate=simulates)) for name in names]
    row = SimpleNamespace(label="l", row="ppo", needed_gpus=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label, "durations", lambda label, hosts: history.get(tuple(hosts), {}))
        ready: Any = SimpleNamespace(rows=[row], sessions=sessions)
        asked: Any = row
        return label._expected_times(ready)(asked).seconds


def test_on_one_host_its_own_history_counts_and_simulated_gpus_take_seconds() -> None:
    assert [expected(names, HISTORY) for names in ("a", "b", "ab")] == [50.0, 400.0, 100.0]
    assert expected("a", {}, simulates=True) == label._SIMULATED_SECONDS
    assert expected("a", {}) > 60
