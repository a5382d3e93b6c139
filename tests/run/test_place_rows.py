"""When a row gets another attempt, how rows and hosts are told to the placement, and what several rows say together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.planning.placement import Decision, ExpectedTime, HostFacts, HostLoad
from ci_tasks.records import Attempt, RunRecord
from ci_tasks.run import place_rows
from ci_tasks.run.host_session import HostSession
from ci_tasks.run.place_rows import RowExecution, RowPlacer, StartedAttempt
from ci_tasks.run.request import ExecutionOptions
from ci_tasks.run.results_table import statuses
from ci_tasks.workflow.model import Row
from tests.run import simulated


def execution(gpus: int = 4) -> RowExecution:
    row = Row("l", "j", None, f"of {gpus}", "tests/t.py", "", gpus, None, {}, "self-hosted", None)
    return RowExecution(0, row, ExpectedTime(60.0))


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
    hosts, row = [session("a"), session("b")], execution()
    for host, status in zip(hosts, attempts, strict=False):
        tried = row.retry(ended(host.name, status), hosts, retry_failed, retry_failed)
    assert tried is again
    assert [attempt.status for attempt in row.earlier] == (attempts if again else attempts[:-1])


@pytest.mark.parametrize("other", [session("b", gpus=2), session("b", problem="cannot be reached")])
def test_a_host_that_cannot_run_the_row_is_no_second_chance(other: HostSession) -> None:
    assert not execution().retry(ended("a", "blocked"), [session("a"), other])


def test_gpus_that_others_hold_are_those_that_our_rows_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HostLoad] = []

    def place(_: object, loads: list[HostLoad]) -> Decision:
        asked[:] = loads
        return Decision((), {}, 0.0)

    monkeypatch.setattr(place_rows, "place", place)
    hosts, rows = [session("a"), session("b", up=False)], [execution(4), execution(2)]
    hosts[0].locked_gpus = frozenset(range(6))
    rows[0].attempt = StartedAttempt(None, hosts[0], 0.0)  # type: ignore[arg-type]
    planner = SimpleNamespace(image_of=lambda _: None, exclusive=lambda *_: ())
    ready: Any = SimpleNamespace(rows=[row.row for row in rows], sessions=hosts, planner=planner)
    RowPlacer(ready, rows, ExecutionOptions(jobs=3)).decide([rows[1]])
    assert [(host.held, host.has_code, host.up, host.slots) for host in asked] == [
        (2, True, True, 3),
        (0, False, False, 3),
    ]
    assert [[started.row.name for started in host.started] for host in asked] == [["of 4"], []]
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
