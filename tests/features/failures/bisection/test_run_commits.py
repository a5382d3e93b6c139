"""From a run's record to what it says of its commit, and several runs at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ci_tasks.config import read
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.features.failures.bisection import run_commits as run_commits_module
from ci_tasks.features.failures.bisection.observations import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.features.failures.bisection.run_commits import (
    CommitRun,
    RowUnderTest,
    RunCancelled,
    observation_of,
    run_commits,
)
from ci_tasks.records import RunRecord, Timings, Triage

ORDER = CommitRun(3, "0123456789abcdef", "one")
WORK = RowUnderTest("repo", None, "label", "row", read("hosts: {one: {kind: local}}", "hosts.yaml"))


def record(status: str, signature: str = "", verdict: str = "failed", reason: str = "why 1") -> RunRecord:
    triage = Triage("x", verdict, 1, "line", signature, 0.9) if signature else None
    return RunRecord("id", "label", "row", "one", status, reason, timings=Timings(1.5), triage=triage)


@pytest.mark.parametrize(
    ("run_record", "target", "kind", "signature"),
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
def test_a_record_says_this_of_its_commit(run_record: RunRecord, target: str, kind: str, signature: str) -> None:
    observation = observation_of(ORDER, run_record, target)
    assert (observation.kind, observation.signature) == (kind, signature)
    assert (observation.position, observation.host, observation.run, observation.seconds) == (3, "one", "id", 1.5)


def raising(problem: Exception) -> Any:
    def perform(*_: Any, **__: Any) -> None:
        raise problem

    return perform


def test_a_commit_that_cannot_begin_says_why_unless_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem, kind in ((UsageError("no label"), MISSING), (Blocked("no python there"), BLOCKED)):
        monkeypatch.setattr(run_commits_module, "open_source", raising(problem))
        observations: list[Observation] = []
        run_commits(WORK, [ORDER], print, observations.append)
        assert [(observation.kind, observation.reason) for observation in observations] == [(kind, str(problem))]
    monkeypatch.setattr(run_commits_module, "open_source", raising(UsageError("no label")))
    with pytest.raises(UsageError, match="no label"):
        run_commits(WORK, [CommitRun(3, "0123", "one", must=True)] * 2, print, lambda _: None)
    with pytest.raises(RunCancelled):
        observation_of(ORDER, record("cancelled"))


def test_several_run_at_once_and_what_ended_counts_when_another_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=20)

    def run_commit(work: RowUnderTest, commit_run: CommitRun, *_: Any) -> Observation:
        together.wait()
        if commit_run.host == "cancelled":
            raise RunCancelled
        return Observation(commit_run.position, PASS, host=commit_run.host)

    monkeypatch.setattr(run_commits_module, "run_commit", run_commit)
    observations: list[Observation] = []
    asked = [CommitRun(1, "a", "one"), CommitRun(2, "b", "cancelled"), CommitRun(3, "c", "two")]
    with pytest.raises(KeyboardInterrupt):
        run_commits(WORK, asked, print, observations.append)
    assert sorted(observation.host for observation in observations) == ["one", "two"]
