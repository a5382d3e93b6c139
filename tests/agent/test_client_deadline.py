"""A run that is of no use without a client ends some time after the last one that waited for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent import files, supervisor
from ci_tasks.agent.processes import client_lock, has_client
from ci_tasks.agent.records import Plan, Status
from ci_tasks.agent.run_directory import RunDir, RunLog


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (supervisor, files):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def run(tmp_path: Path) -> str:
    Path(RunDir(str(tmp_path)).client).touch()
    return str(tmp_path)


def test_it_is_cancelled_its_seconds_after_the_last_client(run: str, clock: Clock) -> None:
    agent: Any = SimpleNamespace(
        paths=RunDir(run), signals=SimpleNamespace(stop_requested=False), last_client=clock.now
    )
    agent.log, agent.plan, agent.status = RunLog(agent.paths.log, ()), Plan(client_seconds=60), Status()

    def is_cancelled() -> bool:
        supervisor.Supervisor._check_client(agent)
        return bool(agent.signals.stop_requested)

    for _ in range(2):
        first, second = client_lock(run), client_lock(run)
        first.close()
        clock.now += 500
        assert not is_cancelled(), "one of several clients is enough"
        second.close()
        clock.now += 59
        assert not is_cancelled()
    clock.now += 1
    for more in (Plan(), Plan(client_seconds=61)):
        agent.plan = more
        assert not is_cancelled()
    agent.plan, agent.status = Plan(client_seconds=60), Status(phase="collecting")
    assert not is_cancelled(), "its job has ended, and its log is closed"
    agent.status = Status()
    assert is_cancelled() and is_cancelled()
    said = Path(agent.paths.log).read_text()
    assert said == "ci-tasks: cancelled, since no client waits for it any more\n"


def test_a_client_that_is_killed_waits_no_more(run: str) -> None:
    code = "import sys; from ci_tasks.agent.processes import client_lock as C; c = C(sys.argv[1]); print(); input()"
    argv = [sys.executable, "-c", code, run]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert has_client(run)
        client.kill()
        client.wait()
        assert not has_client(run)


def test_without_the_file_no_client_waits(run: str) -> None:
    os.unlink(RunDir(run).client)
    assert not has_client(run)
    client_lock(run).close()  # and no error


def test_a_client_waits_for_the_agent_that_looks_at_this_moment(
    run: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(RunDir(run).client, os.O_RDWR)
    assert files.try_lock(looking)
    monkeypatch.setattr(clock, "sleep", lambda _: os.close(looking))
    with client_lock(run):
        assert has_client(run)
