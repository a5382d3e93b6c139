"""When a row gets another attempt, how rows and hosts are told to the placement, and what several rows say together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.config import HostSpec
from ci_tasks.planning.placement import Decision, HostFacts, HostLoad
from ci_tasks.records import Attempt, RunRecord
from ci_tasks.run import execute
from ci_tasks.run.checkout_source import ExecutionOptions
from ci_tasks.run.execute import LabelExecution, StartedAttempt
from ci_tasks.run.progress import statuses
from ci_tasks.run.row_plans import HostSession
from ci_tasks.workflow.model import Row
from tests.run import simulated


def row(gpus: int = 4) -> Row:
    return Row("l", "j", None, f"of {gpus}", "tests/t.py", "", gpus, None, {}, "self-hosted", None)


def executing(rows: list[Row], hosts: list[HostSession], **options: Any) -> LabelExecution:
    """Of which nothing has started yet."""
    planner = SimpleNamespace(image_of=lambda _: None, exclusive=lambda *_: ())
    ready: Any = SimpleNamespace(rows=rows, sessions=hosts, planner=planner)
    view: Any = SimpleNamespace(print_message=lambda _: None)
    return LabelExecution(ready, ExecutionOptions(**options), view, {})


def session(name: str, gpus: int = 8, problem: str = "", *, up: bool = True) -> HostSession:
    host = simulated.Host(name, gpus, {}, up=up)
    site: Any = simulated.Played(HostSpec(name, runtime="none", gpus=gpus), host, "t")
    return HostSession(site, HostFacts(gpus=gpus), problem, is_ready=True)


def ended(host: str, status: str) -> RunRecord:
    return RunRecord("b.01", "l", "r", host, status, "why", attempts=(Attempt("b.01", host, status, "why"),))


# --retry-failed, how the attempts on a, b, … ended, whether there is another attempt after the last of them
CASES = {
    "blocked on one host, another is there": (False, ["blocked"], True),
    "lost with its host": (False, ["lost"], True),
    "blocked everywhere": (False, ["blocked", "blocked"], False),
    "failed": (False, ["failed"], False),
    "vacuous": (False, ["vacuous"], False),
    "cancelled": (False, ["cancelled"], False),
    "passed": (False, ["passed"], False),
    "failed, and that is to be tried again": (True, ["failed"], True),
    "failed twice": (True, ["failed", "failed"], False),
    "blocked, then failed": (False, ["blocked", "failed"], False),
    "blocked, then failed where it may be tried again": (True, ["blocked", "failed"], True),
}


@pytest.mark.parametrize(("retry_failed", "attempts", "again"), CASES.values(), ids=CASES)
def test_a_row_is_tried_again_only_for_the_environments_sake(
    retry_failed: bool, attempts: list[str], again: bool
) -> None:
    hosts = [session("a"), session("b")]
    run = executing([row()], hosts, retry_failed=retry_failed)
    for host, status in zip(hosts, attempts, strict=False):
        tried = run._try_again(run.executions[0], ended(host.name, status), RunDir("/r"))
    assert tried is again
    assert [attempt.status for attempt in run.executions[0].earlier] == (attempts if again else attempts[:-1])


@pytest.mark.parametrize("other", [session("b", gpus=2), session("b", problem="cannot be reached")])
def test_a_host_that_cannot_run_the_row_is_no_second_chance(other: HostSession) -> None:
    run = executing([row()], [session("a"), other])
    assert not run._try_again(run.executions[0], ended("a", "blocked"), RunDir("/r"))


def test_a_failed_row_runs_again_on_another_host_and_else_where_it_failed() -> None:
    hosts = [session("a"), session("b")]
    run = executing([row()], hosts, retry_failed=True)
    (execution,) = run.executions
    assert run._try_again(execution, ended("a", "failed"), RunDir("/r"))
    assert execution.hosts_of(hosts) == hosts[1:]
    hosts[1].unusable_reason = "away"
    assert execution.hosts_of(hosts) == hosts[:1]


def test_gpus_that_others_hold_are_those_that_our_rows_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HostLoad] = []

    def place(_: object, loads: list[HostLoad]) -> Decision:
        asked[:] = loads
        return Decision({}, {})

    monkeypatch.setattr(execute, "place", place)
    hosts = [session("a"), session("b", up=False)]
    hosts[0].locked_gpus = frozenset(range(6))
    run = executing([row(4), row(2)], hosts, jobs=3)
    run.executions[0].attempt = StartedAttempt(None, hosts[0], 0.0)  # type: ignore[arg-type]
    run.place_and_start_rows()
    assert [(host.held, host.up, host.slots) for host in asked] == [(2, True, 3), (0, False, 3)]
    assert [[row.name for row in host.rows] for host in asked] == [["of 4"], []]
    assert [hosts[0].progress(ours=4).held, hosts[0].progress(ours=0).held] == [2, 6]


def test_rows_that_another_ones_failure_ended_say_nothing_of_their_own() -> None:
    failed, cancelled, passed = (ended("a", status) for status in ("failed", "cancelled", "passed"))
    assert statuses([failed, replace(cancelled, stopped=True)]) == ["failed"]
    assert statuses([replace(passed, stopped=True), failed]) == ["passed", "failed"]
    assert statuses([cancelled, failed]) == ["cancelled", "failed"]


def test_a_failure_that_ci_goes_on_after_does_not_fail_the_whole() -> None:
    failed, lost, passed = (ended("a", status) for status in ("failed", "lost", "passed"))
    assert statuses([replace(failed, may_fail=True), passed]) == ["passed", "passed"]
    assert statuses([replace(lost, may_fail=True), failed]) == ["lost", "failed"]
