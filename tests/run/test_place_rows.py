"""How rows and hosts are told to the placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.planning.placement import Decision, ExpectedTime, HostFacts, HostLoad, WaitingRow
from ci_tasks.run import place_rows
from ci_tasks.run.host_session import HostSession
from ci_tasks.run.place_rows import RowExecution, RowPlacer, StartedAttempt
from ci_tasks.run.request import ExecutionOptions
from ci_tasks.workflow.model import Row
from tests.run import simulated


class Given:
    """What an Allotment needs of a prepared command; no plan names anything that rows cannot share."""

    def __init__(self, rows: Sequence[Row], sessions: Sequence[HostSession]) -> None:
        self.rows, self.sessions, self.planner = tuple(rows), tuple(sessions), self

    def image_of(self, row: Row) -> str | None:
        return row.image

    def exclusive(self, row: Row, session: HostSession) -> tuple[str, ...]:
        return ()


def row(name: str, gpus: int) -> Row:
    return Row("l", "j", None, name, f"tests/{name}.py", "", gpus, None, {}, "self-hosted", None)


def session(name: str, gpus: int) -> HostSession:
    host = simulated.Host(name, gpus, {})
    site: Any = simulated.Played(HostSpec(name, runtime="none", gpus=gpus), host, "t")
    return HostSession(site, HostFacts(gpus=gpus), is_ready=True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[WaitingRow], list[HostLoad]]]:
    """What the placement was asked; it starts nothing."""
    questions: list[tuple[list[WaitingRow], list[HostLoad]]] = []

    def place(waiting: Any, machines: Any) -> Decision:
        questions.append((list(waiting), list(machines)))
        return Decision((), {}, 0.0)

    monkeypatch.setattr(place_rows, "place", place)
    return questions


def placement(
    sessions: list[HostSession], gpus: list[int], jobs: int | None = None
) -> tuple[RowPlacer, list[RowExecution]]:
    executions = [RowExecution(at, row(f"r{at}", count), ExpectedTime(60.0)) for at, count in enumerate(gpus)]
    batch: Any = Given([execution.row for execution in executions], sessions)
    return RowPlacer(batch, executions, ExecutionOptions(jobs)), executions


def test_gpus_that_others_hold_are_those_which_are_not_our_rows(calls: Any) -> None:
    hosts = [session("a", 8), session("b", 8)]
    allotted, executions = placement(hosts, [4, 2])
    hosts[0].locked_gpus = frozenset(range(6))
    prepared: Any = object()
    executions[0].attempt = StartedAttempt(prepared, hosts[0], 0.0)
    allotted.decide([executions[1]])
    ((_, machines),) = calls
    assert [machine.held for machine in machines] == [2, 0]
    assert [[started.row.name for started in machine.started] for machine in machines] == [["r0"], []]
    assert [machine.has_code for machine in machines] == [True, False]


def test_a_host_that_is_away_is_told_so_but_for_the_only_one(calls: Any) -> None:
    for hosts in ([session("a", 8), session("b", 8)], [session("a", 8)]):
        hosts[0].executor.host.up = False  # type: ignore[attr-defined]
        allotted, executions = placement(hosts, [4])
        allotted.decide(executions)
    assert [[machine.up for machine in machines] for _, machines in calls] == [[False, True], [True]]


def test_the_lane_of_a_host_shows_gpus_that_others_hold_and_not_our_own() -> None:
    hosts = [session("a", 8), session("b", 8)]
    hosts[0].locked_gpus = hosts[1].locked_gpus = frozenset(range(6))
    lanes = [hosts[0].progress(ours=4), hosts[1].progress(ours=0)]
    assert [(lane.name, lane.gpus, lane.held, lane.up) for lane in lanes] == [("a", 8, 2, True), ("b", 8, 6, True)]
