"""Which changed test runs where, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.records import FAILED, PASSED, BatchResult
from ci_tasks.results.history import LastRun
from ci_tasks.run import changed_label
from ci_tasks.run.changed_label import ChangedRows, changed_runs, divide, parts
from ci_tasks.run.find_rows import JobRows
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row

REQUEST = RunRequest("changed", host="h100a", image="a/b", prefetch=True)


def row(label: str, name: str, gpus: int, image: str | None = None, test: str | None = None) -> Row:
    path = test or f"tests/test_{name}.py"
    return Row(label, label, None, name, path, "", gpus, image, {}, "self-hosted", None)


CPU = [row("cpu-unittest", "rewards", 0), row("cpu-unittest", "metrics", 0), row("agent-test", "tools", 0)]
ALL = [*CPU, row("megatron", "ppo", 8, "a/b"), row("image", "rewards", 0, "a/b")]


def divided(*rows: Row, left_out: dict[str, str] | None = None, only: str | None = None) -> ChangedRows:
    return divide(JobRows(Job("changed", 1), list(rows), EventContext(), (), left_out or {}), ALL, only, "changed")


def changed(name: str, gpus: int = 8, test: str | None = None) -> Row:
    return row("changed", name, gpus, "a/b", test)


def test_a_test_of_a_cpu_label_runs_as_that_row_and_the_others_as_rows_of_cis_job() -> None:
    found = divided(changed("rewards", 0), changed("ppo"), changed("new", 0))
    assert [row.row for row in found.cpu_rows] == ["rewards"]
    assert found.cpu_rows[0].label == "cpu-unittest", "image has it too, in a container"
    assert [row.row for row in found.rows] == ["ppo", "new"]
    assert not found.not_run


def test_every_cpu_label_is_one_run_on_this_machine_and_the_rest_one_on_the_host_that_was_asked_for() -> None:
    here, agent, there = parts(divided(changed("rewards"), changed("tools"), changed("ppo")), REQUEST)
    assert here == replace(REQUEST, label="cpu-unittest", rows=("rewards",), host="local", image=None, prefetch=False)
    assert (agent.label, agent.rows, agent.host) == ("agent-test", ("tools",), "local")
    assert there == replace(REQUEST, rows=("ppo",))


def test_a_cpu_test_that_ci_leaves_out_runs_here_all_the_same() -> None:
    found = divided(left_out={"tests/test_metrics.py": "no pathspec selects it"})
    assert [row.row for row in found.cpu_rows] == ["metrics"]
    assert (found.rows, found.not_run) == ([], {})


def test_what_ci_leaves_out_and_no_cpu_label_has_is_not_run_and_says_why() -> None:
    found = divided(left_out={"tests/test_ppo.py": "it was renamed", "tests/utils/test_x.py": "no pathspec selects it"})
    assert found.not_run == {
        "tests/test_ppo.py": "CI leaves it out: it was renamed; label megatron runs it",
        "tests/utils/test_x.py": "CI leaves it out: no pathspec selects it",
    }


def test_a_helper_that_ci_would_run_as_a_test_is_not_run() -> None:
    found = divided(changed("_fakes", test="tests/test_agent/_fakes.py"))
    assert found.rows == []
    assert found.not_run == {"tests/test_agent/_fakes.py": "no test by its name, though CI's detection selects it"}


def test_only_selects_among_both_and_names_what_there_is() -> None:
    found = divided(changed("rewards"), changed("ppo"), only="ppo")
    assert ([row.row for row in found.cpu_rows], [row.row for row in found.rows]) == ([], ["ppo"])
    with pytest.raises(UnknownName, match="unknown row 'pppo' in label changed"):
        divided(changed("rewards"), only="pppo")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A checkout whose change touches a CPU test and a GPU test; the CPU test passed in its label's last run."""
    found = JobRows(Job("changed", 1), [changed("rewards"), changed("ppo")], EventContext())
    last = {"cpu-unittest": [LastRun("rewards", PASSED, "1")], "changed": []}
    monkeypatch.setattr(changed_label, "find_rows", lambda *_: found)
    monkeypatch.setattr(changed_label, "list_jobs", lambda _: ALL)
    monkeypatch.setattr(changed_label, "event_context", lambda _: EventContext())
    monkeypatch.setattr(changed_label, "latest", lambda label, _: last[label])
    return SimpleNamespace(headline="checkout: here", path="/here")


def test_every_changed_test_is_listed_with_where_it_runs(source: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert [run.rows for run in changed_runs(source, REQUEST)] == [("rewards",), ("ppo",)]
    assert capsys.readouterr().out.splitlines() == [
        "checkout: here",
        "Changed since origin/main:",
        "  tests/test_rewards.py  row rewards of cpu-unittest, here",
        "  tests/test_ppo.py      row ppo of changed, 8 GPUs, on h100a",
    ]


def test_last_failed_leaves_what_passed_in_the_last_run_of_its_own_label(source: Any) -> None:
    assert [run.rows for run in changed_runs(source, REQUEST, last_failed=True)] == [("ppo",)]


def test_last_failed_with_nothing_left_is_an_error(source: Any) -> None:
    with pytest.raises(UsageError, match="every changed test passed"):
        changed_runs(source, replace(REQUEST, only="rewards"), last_failed=True)


def started(monkeypatch: pytest.MonkeyPatch, *, fail_fast: bool) -> list[str]:
    """The labels of the runs that start where the first one fails."""
    labels: list[str] = []

    def execute(_source: object, _config: object, run: RunRequest, *_: object, **__: object) -> object:
        labels.append(run.label)
        return SimpleNamespace(records=[SimpleNamespace(status=FAILED, counted_status=FAILED, stopped="")])

    runs = [RunRequest("cpu-unittest", rows=("rewards",)), RunRequest("changed", rows=("ppo",))]
    monkeypatch.setattr(changed_label, "changed_runs", lambda *_, **__: runs)
    monkeypatch.setattr(changed_label, "execute_label", execute)
    monkeypatch.setattr(changed_label, "_end", lambda results, *_: BatchResult("", FAILED, len(results)))
    source: Any = None
    config: Any = None
    opener: Any = None
    options = ExecutionOptions(fail_fast=fail_fast)
    together = changed_label.run_changed(source, config, REQUEST, options, open_executor=opener)
    assert together.exit_code == len(labels)
    return labels


def test_a_failed_cpu_test_does_not_keep_the_others_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(monkeypatch, fail_fast=False) == ["cpu-unittest", "changed"]


def test_with_fail_fast_it_does_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert started(monkeypatch, fail_fast=True) == ["cpu-unittest"]
    assert capsys.readouterr().out == "--fail-fast: not started: ppo\n"
