"""A run that is of no use without its client notices when nobody waits for it any more."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.agent import client_watch, file_lock
from ci_tasks.agent.client_watch import ClientDeadline, ClientWatch
from ci_tasks.agent.file_lock import try_lock
from ci_tasks.agent.run_directory import RunDir


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (client_watch, file_lock):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def run(tmp_path: Path) -> str:
    Path(RunDir(str(tmp_path)).client).touch()
    return str(tmp_path)


def test_it_is_given_up_once_its_seconds_after_the_last_client_have_passed(run: str, clock: Clock) -> None:
    deadline = ClientDeadline(run, 60)
    with ClientWatch(run):
        clock.now += 500
        assert not deadline.poll()
    clock.now += 59
    assert (deadline.poll(), deadline.has_passed) == (False, False)
    clock.now += 1
    assert (deadline.poll(), deadline.has_passed) == (True, True)
    assert (deadline.poll(), deadline.has_passed) == (False, True), "only once"


def test_one_of_several_clients_is_enough(run: str, clock: Clock) -> None:
    deadline, first, second = ClientDeadline(run, 0), ClientWatch(run), ClientWatch(run)
    first.release()
    assert not deadline.poll()
    second.release()
    assert deadline.poll()


def test_a_client_that_comes_back_in_time_counts_from_then_on(run: str, clock: Clock) -> None:
    deadline = ClientDeadline(run, 60)
    clock.now += 50
    with ClientWatch(run):
        assert not deadline.poll()
    clock.now += 50
    assert not deadline.poll()


def test_a_client_that_is_killed_releases_it(run: str, clock: Clock) -> None:
    code = "import sys; from ci_tasks.agent.client_watch import ClientWatch as C; c = C(sys.argv[1]); print(); input()"
    argv = [sys.executable, "-c", code, run]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        deadline = ClientDeadline(run, 0)
        assert not deadline.poll()
        client.kill()
        client.wait()
        assert deadline.poll()


def test_a_run_that_goes_on_without_a_client_has_no_deadline(run: str, clock: Clock) -> None:
    deadline = ClientDeadline(run, None)
    clock.now += 1e9
    assert not deadline.poll()


@pytest.mark.parametrize(
    ("make", "is_given_up"), [(os.unlink, True), (lambda path: os.replace(_link(path), path), False)]
)
def test_without_the_file_nobody_waits_and_where_it_cannot_be_opened_somebody_may(
    run: str, clock: Clock, make: object, is_given_up: bool
) -> None:
    make(RunDir(run).client)  # type: ignore[operator]
    assert ClientDeadline(run, 0).poll() == is_given_up
    ClientWatch(run).release()  # and no error


def _link(path: str) -> str:
    os.symlink("elsewhere", path + ".link")
    return path + ".link"


def test_where_the_file_system_has_no_locks_somebody_may_wait(
    run: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    ClientWatch(run).release()
    assert not ClientDeadline(run, 0).poll()


def test_a_client_waits_for_the_agent_that_looks_at_this_moment(
    run: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(RunDir(run).client, os.O_RDWR)
    assert try_lock(looking)
    monkeypatch.setattr(clock, "sleep", lambda _: os.close(looking))
    with ClientWatch(run):
        assert not ClientDeadline(run, 0).poll()
