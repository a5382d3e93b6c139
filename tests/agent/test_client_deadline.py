"""A run that is of no use without a client ends some time after the last one that waited for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.agent import files, liveness
from ci_tasks.agent.liveness import ClientDeadline, client_lock
from ci_tasks.agent.run_directory import RunDir


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (liveness, files):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def run(tmp_path: Path) -> str:
    Path(RunDir(str(tmp_path)).client).touch()
    return str(tmp_path)


def test_it_passes_once_its_seconds_after_the_last_client(run: str, clock: Clock) -> None:
    deadline, never = ClientDeadline(run, 60), ClientDeadline(run, None)
    for _ in range(2):
        first, second = client_lock(run), client_lock(run)
        first.close()
        clock.now += 500
        assert not deadline.poll(), "one of several clients is enough"
        second.close()
        clock.now += 59
        assert not deadline.poll()
    clock.now += 1
    assert deadline.poll()
    assert not deadline.poll(), "only once"
    assert not never.poll()


def test_a_client_that_is_killed_waits_no_more(run: str, clock: Clock) -> None:
    code = "import sys; from ci_tasks.agent.liveness import client_lock as C; c = C(sys.argv[1]); print(); input()"
    argv = [sys.executable, "-c", code, run]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        deadline = ClientDeadline(run, 0)
        assert not deadline.poll()
        client.kill()
        client.wait()
        assert deadline.poll()


def test_without_the_file_no_client_waits(run: str, clock: Clock) -> None:
    os.unlink(RunDir(run).client)
    assert ClientDeadline(run, 0).poll()
    client_lock(run).close()  # and no error


def test_a_client_waits_for_the_agent_that_looks_at_this_moment(
    run: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(RunDir(run).client, os.O_RDWR)
    assert files.try_lock(looking)
    monkeypatch.setattr(clock, "sleep", lambda _: os.close(looking))
    with client_lock(run):
        assert not ClientDeadline(run, 0).poll()
