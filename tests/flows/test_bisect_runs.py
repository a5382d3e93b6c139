"""From a run's record to what it says of its commit, and several runs at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ci_tasks.config import read
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.flows import bisect_runs
from ci_tasks.flows.bisect_runs import Cancelled, Interrupts, Order, Watch, Work, observed, run_all
from ci_tasks.judge.bisection.evidence import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.report.live import RUNNING, Lane

ORDER = Order(3, "0123456789abcdef", "one")
WORK = Work("repo", None, "label", "row", read("hosts: {one: {kind: local}}", "hosts.yaml"))


def record(status: str, signature: str = "", verdict: str = "fail", reason: str = "why 1") -> dict[str, Any]:
    triage = {"signature": signature, "verdict": verdict} if signature else None
    return {
        "id": "id",
        "row": "row",
        "status": status,
        "reason": reason,
        "triage": triage,
        "timings": {"seconds": 1.5},
    }


@pytest.mark.parametrize(
    ("one", "wanted", "kind", "signature"),
    [
        (record("passed"), "", PASS, ""),
        (record("failed", "E#1"), "", FAIL, "E#1"),
        (record("vacuous"), "", FAIL, "vacuous"),
        (record("blocked"), "", BLOCKED, ""),
        (record("lost"), "", BLOCKED, ""),
        # Triage knows an environment's fault in what ended as failed; who looks for just that one, gets it.
        (record("failed", "E#1", "blocked"), "", BLOCKED, ""),
        (record("failed", "E#1", "blocked"), "E#1", FAIL, "E#1"),
        # Without a signature the reason has to do, less what varies.
        (record("failed", reason="exit code 1 at 0x7f3a"), "", FAIL, "exit code # at #"),
        (record("failed", reason="no output for 30 min"), "", FAIL, "no output for # min"),
    ],
)
def test_a_record_says_this_of_its_commit(one: dict[str, Any], wanted: str, kind: str, signature: str) -> None:
    seen = observed(ORDER, one, wanted)
    assert (seen.kind, seen.signature) == (kind, signature)
    assert (seen.position, seen.host, seen.run, seen.seconds) == (3, "one", "id", 1.5)


def test_a_cancelled_run_says_nothing() -> None:
    with pytest.raises(Cancelled):
        observed(ORDER, record("cancelled"))


def raising(problem: Exception) -> Any:
    def perform(*_: Any, **__: Any) -> None:
        raise problem

    return perform


@pytest.mark.parametrize(
    ("problem", "kind"), [(UsageError("no label"), MISSING), (Blocked("no python there"), BLOCKED)]
)
def test_a_commit_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch, problem: Exception, kind: str) -> None:
    monkeypatch.setattr(bisect_runs, "open_source", raising(problem))
    seen: list[Observation] = []
    run_all(WORK, [ORDER], print, seen.append)
    assert [(one.kind, one.reason) for one in seen] == [(kind, str(problem))]


def test_where_the_row_must_be_there_its_absence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bisect_runs, "open_source", raising(UsageError("no label")))
    with pytest.raises(UsageError, match="no label"):
        run_all(WORK, [Order(3, "0123", "one", must=True)] * 2, print, lambda _: None)


def test_several_run_at_once_and_what_ended_counts_when_another_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(3, timeout=20)

    def run_one(work: Work, order: Order, tell: Any, interrupts: Interrupts) -> Observation:
        together.wait()
        if order.host == "cancelled":
            raise Cancelled
        return Observation(order.position, PASS, host=order.host)

    monkeypatch.setattr(bisect_runs, "run_one", run_one)
    seen: list[Observation] = []
    with pytest.raises(KeyboardInterrupt):
        run_all(WORK, [Order(1, "a", "one"), Order(2, "b", "cancelled"), Order(3, "c", "two")], print, seen.append)
    assert sorted(one.host for one in seen) == ["one", "two"]


def test_a_run_hears_of_every_ctrl_c_once() -> None:
    interrupts = Interrupts()
    watch = Watch("name", print, interrupts)
    watch.show([])
    for _ in range(2):
        interrupts.pressed += 1
        with pytest.raises(KeyboardInterrupt):
            watch.say("anything")
        watch.show([])


def test_a_long_run_says_now_and_then_that_it_goes_on() -> None:
    told: list[str] = []
    watch = Watch("0123 on one", told.append, Interrupts())
    lanes = [Lane("row", RUNNING, 75.0, "step 3")]
    watch.show(lanes)
    assert not told
    watch.spoken -= 61
    watch.show(lanes)
    watch.show(lanes)
    assert told == ["     0123 on one: running for 1 min 15 s: step 3"]
