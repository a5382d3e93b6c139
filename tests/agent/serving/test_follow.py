"""The updates that a client gets of the runs that it follows."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import liveness, processes
from ci_tasks.agent.codec import decode
from ci_tasks.agent.liveness import agent_lock
from ci_tasks.agent.records import SlurmJob, Status
from ci_tasks.agent.run_directory import write_record
from ci_tasks.agent.serving import frames
from ci_tasks.agent.serving.follow import LinkSpeed, RunFollower
from ci_tasks.agent.serving.messages import FollowedRun, HostMessage, RunUpdate
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.job_file import SlurmJobState
from ci_tasks.agent.slurm.session import SlurmRunState, SlurmSession

ENDED = json.dumps({"state": "ended", "log_sha256": "x"})


class Client:
    """Takes what is sent, until it goes away."""

    def __init__(self) -> None:
        self.reader, self.updates, self.is_disconnected = frames.FrameReader(), [], False  # type: ignore[var-annotated]
        self.log, self.kinds = b"", list[bytes]()
        self.on_update: Callable[[RunUpdate], None] = lambda update: None

    def __call__(self, data: bytes | memoryview) -> None:
        if self.is_disconnected:
            raise BrokenPipeError
        for kind, payload in self.reader.feed(bytes(data)):
            self.kinds.append(kind)
            if kind in (frames.LOG, frames.PACKED_LOG):
                self.log += frames.read_log(kind, payload)[2]
            if kind == frames.JSON:
                self.updates.append(decode(HostMessage, json.loads(payload), where="update").update or RunUpdate(0))
                self.on_update(self.updates[-1])

    def has_ends(self, count: int) -> bool:
        return [update.over for update in self.updates].count(True) == count


class Watcher(threading.Thread):
    """Looks at runs again and again, as the server's loop does."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client, self.link, self.watched = client, LinkSpeed(), dict[int, RunFollower]()

    def watch(self, key: int, run_dir: str, offset: int, job: SlurmRunState | None = None) -> None:
        self.watched[key] = RunFollower(FollowedRun(key, run_dir, offset), self.client, self.link, job)

    def run(self) -> None:
        while not self.client.is_disconnected:
            for run in list(self.watched.values()):
                with contextlib.suppress(OSError, ValueError):
                    run.poll()
                if run.over and self.watched[run.key] is run:
                    del self.watched[run.key]
            time.sleep(0.005)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.is_disconnected = True


@pytest.fixture
def watcher(client: Client) -> Watcher:
    made = Watcher(client)
    made.start()
    return made


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_that_is_watched_again_at_its_very_end_sends_its_end_again(
    client: Client, watcher: Watcher, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text(ENDED)

    def again(update: RunUpdate) -> None:  # in the middle of sending: as early as a client can ask
        if update.over and client.has_ends(1):
            watcher.watch(1, str(tmp_path), 0)

    client.on_update = again
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: client.has_ends(2))


def test_the_end_of_a_run_on_another_machine_comes_after_its_whole_log(
    client: Client, watcher: Watcher, tmp_path: Path
) -> None:
    """A file system that caches may show the status first."""
    job_file.write(str(tmp_path), SlurmJob(home=str(tmp_path), name="batch", id="7"))
    ended = {**json.loads(ENDED), "end": "exit", "exit_code": 0, "log_bytes": 9}
    (tmp_path / "status.json").write_text(json.dumps(ended))
    (tmp_path / "log").write_bytes(b"begin")
    polls: list[int] = []

    class Job(SlurmRunState):
        def join(self, status: Status) -> tuple[Status, bool]:
            polls.append(len(client.updates))
            return super().join(status)

    class Over(SlurmSession):
        def state(self, job: str) -> tuple[SlurmJobState, float]:
            return SlurmJobState("COMPLETED", exit_code=0), 0.0

    watcher.watch(1, str(tmp_path), 0, Job(str(tmp_path), Over()))
    until(lambda: len(polls) > 2)
    assert client.updates == []
    with open(tmp_path / "log", "ab") as log:
        log.write(b" end")
    until(lambda: client.has_ends(1))
    assert client.log == b"begin end"


def test_two_statuses_that_share_one_mtime_are_both_sent(client: Client, watcher: Watcher, tmp_path: Path) -> None:
    """A file system's clock may stand still for longer than an agent needs to write its last two."""
    running = Status("running", sequence=1, **processes.identity()._asdict())
    status = tmp_path / "status.json"
    for number, record in enumerate((running, replace(running, sequence=2), Status("ended", sequence=3)), 1):
        write_record(str(tmp_path / "new"), record)
        os.utime(tmp_path / "new", ns=(1, 1))
        (tmp_path / "new").replace(status)
        if number == 1:
            watcher.watch(1, str(tmp_path), 0)
        until(lambda: client.updates and client.updates[-1].status == record)  # noqa: B023
    assert client.has_ends(1)


@pytest.mark.parametrize(
    ("bytes_a_second", "is_slow"), [(1e9, False), (100e6, False), (12.5e6, True), (1e6, True)], ids="{:.0e}".format
)
def test_a_link_is_slow_if_it_is_full_for_long(
    monkeypatch: pytest.MonkeyPatch, bytes_a_second: float, is_slow: bool
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    link = LinkSpeed()
    for _ in range(40):
        link.add(1 << 16, True)
        clock[0] += (1 << 16) / bytes_a_second
        link.add(0, False)
        clock[0] += 60.0  # a job that is silent makes no link slow
    assert link.is_slow == is_slow


def test_a_long_log_over_a_slow_link_arrives_packed(client: Client, watcher: Watcher, tmp_path: Path) -> None:
    watcher.link.is_slow = True
    log = b"".join(b"step %d\n" % step for step in range(100_000))
    (tmp_path / "log").write_bytes(log)
    (tmp_path / "status.json").write_text(ENDED)
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: client.has_ends(1))
    assert client.log == log
    assert client.kinds.count(frames.PACKED_LOG) > 0


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_what_a_job_puts_in_the_place_of_its_log_holds_up_nobody(
    client: Client, watcher: Watcher, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Who opens a pipe waits for a writer, and with it every run of the host."""
    make(tmp_path / "log")
    (tmp_path / "status.json").write_text(ENDED)
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: client.has_ends(1))


def test_a_run_whose_job_took_its_status_away_goes_on(
    client: Client, watcher: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, is_held, looks = agent_lock(str(tmp_path)), liveness.is_held, list[bool]()

    def look(path: str) -> bool:
        looks.append(is_held(path))
        return looks[-1]

    monkeypatch.setattr(liveness, "is_held", look)
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: looks)
    (tmp_path / "status.json").write_text(json.dumps({"state": "running"}))
    until(lambda: client.updates)
    assert not client.updates[0].over
    lock.release()


def test_a_dead_agent_with_a_directory_for_a_status_has_ended(client: Client, watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "status.json" / "x").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for key in range(20):
        watcher.watch(key, str(tmp_path), 0)
    until(lambda: client.has_ends(20))
    assert client.updates[-1].gone
    assert len(os.listdir("/proc/self/fd")) < before + 20
