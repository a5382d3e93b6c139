"""When a row gets another attempt, and what several rows say together."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.hosts.executor import Executor
from ci_tasks.planning.placement import ExpectedTime, HostFacts
from ci_tasks.records import Attempt, RunRecord
from ci_tasks.run.host_session import HostSession
from ci_tasks.run.place_rows import RowExecution
from ci_tasks.run.results_table import statuses
from ci_tasks.workflow.model import Row

ROW = Row(
    label="ckpt", job="e2e-test-ckpt", trigger=None, row="tiny", test="tests/t.py", args="", gpus=4, image=None,
    env={}, runner="self-hosted", timeout_minutes=None,
)  # fmt: skip


class Somewhere:
    """As much of a site as a station speaks of."""

    def __init__(self, name: str) -> None:
        self.spec = HostSpec(name=name, runtime="none", gpus=8)


def session(name: str, gpus: int = 8, problem: str = "") -> HostSession:
    return HostSession(cast(Executor, Somewhere(name)), facts=HostFacts(gpus=gpus), unusable_reason=problem)


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
    execution = RowExecution(0, ROW, ExpectedTime(60.0))
    for host, status in zip(hosts, attempts, strict=False):
        tried = execution.retry(ended(host.name, status), hosts, retry_failed, retry_failed)
    assert tried is again
    assert [attempt.status for attempt in execution.earlier] == (attempts if again else attempts[:-1])


@pytest.mark.parametrize("other", [session("b", gpus=2), session("b", problem="cannot be reached")])
def test_a_host_that_cannot_run_the_row_is_no_second_chance(other: HostSession) -> None:
    assert not RowExecution(0, ROW, ExpectedTime(60.0)).retry(ended("a", "blocked"), [session("a"), other])


def test_rows_that_another_ones_failure_ended_say_nothing_of_their_own() -> None:
    failed, cancelled, passed = (ended("a", status) for status in ("failed", "cancelled", "passed"))
    assert statuses([failed, replace(cancelled, stopped=True)]) == ["failed"]
    assert statuses([replace(passed, stopped=True), failed]) == ["passed", "failed"]
    assert statuses([cancelled, failed]) == ["cancelled", "failed"]


def test_a_failure_that_ci_goes_on_after_does_not_fail_the_whole() -> None:
    failed, lost, passed = (ended("a", status) for status in ("failed", "lost", "passed"))
    assert statuses([replace(failed, may_fail=True), passed]) == ["passed", "passed"]
    assert statuses([replace(lost, may_fail=True), failed]) == ["lost", "failed"]
