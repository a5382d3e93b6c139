"""The server's loop: requests in and answers out over a socket, as a client has them; runs that it follows or lists."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive, liveness, processes
from ci_tasks.agent.codec import decode
from ci_tasks.agent.liveness import agent_lock
from ci_tasks.agent.records import Plan, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, read_status, write_record
from ci_tasks.agent.serving import frames, messages, requests
from ci_tasks.agent.serving.messages import FollowedRun, HostMessage, RunUpdate
from ci_tasks.agent.serving.serve import Join, LinkSpeed, RunFollower
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.job_file import SlurmJobState
from ci_tasks.agent.slurm.session import SlurmSession
from ci_tasks.hosts import bootstrap
from tests import fixtures as support

SOURCES = archive.build()


class Client:
    """Speaks to a server of its own. `said` are the host's messages, `parts` what came for a request."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._sock, theirs = socket.socketpair()
        self._sock.settimeout(60)
        command = bootstrap.command(str(home), archive.digest(SOURCES), "", shlex.quote(sys.executable))
        with theirs:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", command], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=theirs.fileno()
            )
        packed = archive.packed(SOURCES)
        self.send(b"\n" + bootstrap.header(len(packed)) + packed)
        self._reader = frames.FrameReader()
        self.said: list[dict[str, Any]] = []
        self.raw = self.data = b""

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def ask(self, number: int, request: messages.Request) -> None:
        self.send(frames.message(messages.ClientMessage(number, request)))

    def hello(self) -> dict[str, Any]:
        while frames.MAGIC not in self.raw:
            self.raw += self._receive()
        rest = self.raw.partition(frames.MAGIC)[2]
        self.raw = b""
        self._take(rest)
        while not self.said:
            self._take(self._receive())
        hello: dict[str, Any] = self.said.pop(0)["hello"]
        return hello

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            for message in self.said:
                if (message.get("response") or {}).get("id") == number:
                    response: dict[str, Any] = message["response"]
                    return response
            self._take(self._receive())

    def repeated(self, goodbye: bytes) -> bool:
        while goodbye not in self.raw:
            self.raw += self._receive()
        self.raw = b""
        return True

    def _receive(self) -> bytes:
        chunk = self._sock.recv(1 << 16)
        assert chunk, "the server has ended"
        return chunk

    def _take(self, data: bytes) -> None:
        for kind, payload in self._reader.feed(data):
            if kind == frames.JSON:
                self.said.append(json.loads(payload))
            else:
                self.data += payload

    def close(self) -> None:
        self._sock.close()
        self.process.wait(60)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path / "home")
    yield made
    made.close()


def plan_of(client: Client, name: str = "01") -> tuple[str, RunDir]:
    path = str(client.home / "runs/batch" / name)
    return path, RunDir(path)


def test_requests_that_cannot_be_understood_are_refused_and_end_nothing(client: Client) -> None:
    client.hello()
    for payload in (b"{", b"[]", b'{"id": 4, "request": {"do": "no such thing"}}'):
        client.send(frames.frame(frames.JSON, payload))
    client.ask(5, messages.ListRuns())
    assert client.answer(4)["code"] == "unknown"
    assert client.answer(5) == {"id": 5}


def test_a_question_that_takes_long_keeps_no_other_waiting(client: Client) -> None:
    client.hello()
    wait = ("sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done', f"{client.home}/go")
    client.ask(1, messages.RunPrograms({"slow": wait}, 50.0))
    client.ask(2, messages.RunPrograms({"go": ("touch", f"{client.home}/go")}, 50.0))
    assert client.answer(2)["result"]["outputs"]["go"]["code"] == 0
    assert client.answer(1)["result"]["outputs"]["slow"]["code"] == 0


def test_what_follows_a_request_that_is_refused_is_taken_for_no_other(client: Client) -> None:
    client.hello()
    for number in (1, 3):
        client.ask(number, messages.Receive())
        for _ in range(3):
            client.send(frames.frame(frames.DATA, os.urandom(1 << 20)))
        client.send(frames.frame(frames.DATA))
    client.ask(4, messages.ListRuns())
    assert client.answer(1)["code"] == client.answer(3)["code"] == "missing-base"
    assert client.answer(4) == {"id": 4}


def test_a_run_that_is_cancelled_before_it_starts_never_does(client: Client) -> None:
    """By whoever asks, and over another connection than the one that starts it."""
    client.hello()
    path, run = plan_of(client)
    client.ask(
        1, messages.Create(path, Plan(id="batch.01"), f"#!/bin/bash\ntouch {shlex.quote(str(client.home))}/ran\n")
    )
    assert client.answer(1) == {"id": 1}
    other = Client(client.home)
    other.hello()
    other.ask(1, messages.Cancel(path))
    assert other.answer(1) == {"id": 1}
    other.close()
    client.ask(2, messages.StartRun(path))
    client.ask(3, messages.Follow((messages.FollowedRun(7, path, 0),)))
    assert client.answer(2) == {"id": 2}
    assert client.answer(3) == {"id": 3}
    assert (read_status(run).state, read_status(run).end) == ("ended", "cancelled")
    assert not (client.home / "ran").exists()


@pytest.mark.parametrize(
    ("masked", "given", "left"), [(False, {"TOKEN": "s3cret"}, False), (True, {}, True), (False, {}, True)]
)
def test_the_files_of_an_agent_that_died_before_it_masked_are_masked_before_they_are_sent(
    client: Client, masked: bool, given: dict[str, str], left: bool
) -> None:
    """One that had masked needs no secret; without its secrets nothing of a run is sent."""
    client.hello()
    path, run = plan_of(client)
    os.makedirs(path)
    write_record(run.status, Status(state="ended", secrets=("TOKEN",), masked=masked))
    Path(run.agent_log).write_text("it is s3cret")
    client.ask(1, messages.Collect(path, given))
    assert client.answer(1) == {"id": 1}
    assert ("s3cret" in Path(run.agent_log).read_text()) is left
    assert (b"agent.log" in client.data) is (masked or bool(given))
    assert (b"s3cret" in client.data) is masked


def test_a_client_that_says_goodbye_leaves_the_server_to_the_next_one(client: Client) -> None:
    client.hello()
    goodbye = frames.frame(frames.GOODBYE, b"0123456789abcdef")
    client.ask(1, messages.RunPrograms({"slow": ("sleep", "300")}, 300.0))
    client.send(goodbye)
    assert client.repeated(goodbye)
    client.send(frames.frame(frames.HEARTBEAT))
    assert client.hello()["home"] == str(client.home)
    client.ask(2, messages.ListRuns())
    assert client.answer(2) == {"id": 2}


def test_a_server_whose_client_has_gone_ends_and_the_run_goes_on(client: Client, tmp_path: Path) -> None:
    client.hello()
    path, run = plan_of(client)
    script = f"#!/bin/bash\nuntil [ -e {shlex.quote(str(tmp_path))}/go ]; do sleep 0.02; done; exit 5\n"
    client.ask(1, messages.Create(path, Plan(id="batch.01", workspace=""), script))
    client.ask(2, messages.StartRun(path))
    assert client.answer(2) == {"id": 2}
    client.close()
    (tmp_path / "go").touch()
    other = Client(client.home)
    other.hello()
    other.ask(1, messages.Follow((messages.FollowedRun(7, path, 0),)))
    assert other.answer(1) == {"id": 1}
    while not any((message.get("update") or {}).get("over") for message in other.said):
        other._take(other._receive())
    assert read_status(run).exit_code == 5
    other.close()


def write(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_run_that_was_half_removed_is_still_listed(tmp_path: Path) -> None:
    write(tmp_path / "runs/batch/01/plan.json", '{"id": "batch.01", "row": "r"}')
    write(tmp_path / "runs/batch/02/workspace/01/file")
    write(tmp_path / "runs/batch/environments/abc/run.sh")
    runs = {run.dir: (run.id, run.is_row, run.state) for run in requests.list_runs(str(tmp_path))}
    assert runs == {
        str(tmp_path / "runs/batch/01"): ("batch.01", True, "planned"),
        str(tmp_path / "runs/batch/02"): ("batch.02", True, "planned"),
        str(tmp_path / "runs/batch/environments/abc"): ("batch/environments/abc", False, "planned"),
    }


def test_a_run_is_called_as_its_directory_is_whatever_its_plan_says(tmp_path: Path) -> None:
    write(tmp_path / "runs/batch/01/plan.json", '{"id": "another.07", "row": ""}')
    (run,) = requests.list_runs(str(tmp_path))
    assert (run.id, run.is_row) == ("batch.01", True)


def test_a_directory_that_no_run_is_called_by_is_not_listed(tmp_path: Path) -> None:
    write(tmp_path / "runs/bat\nch/01/plan.json")
    write(tmp_path / "runs/batch/01/plan.json")
    assert [run.id for run in requests.list_runs(str(tmp_path))] == ["batch.01"]


def test_a_link_is_no_run(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/plan.json")
    (tmp_path / "runs/batch").mkdir(parents=True)
    (tmp_path / "runs/batch/01").symlink_to(tmp_path / "elsewhere")
    assert requests.list_runs(str(tmp_path)) == []


ENDED = json.dumps({"state": "ended", "log_sha256": "x"})


class Receiver:
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

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(daemon=True)
        self.receiver, self.link, self.watched = receiver, LinkSpeed(), dict[int, RunFollower]()

    def watch(self, key: int, run_dir: str, offset: int, join: Join | None = None) -> None:
        self.watched[key] = RunFollower(FollowedRun(key, run_dir, offset), self.receiver, self.link, join)

    def run(self) -> None:
        while not self.receiver.is_disconnected:
            for run in list(self.watched.values()):
                with contextlib.suppress(OSError, ValueError):
                    run.poll()
                if run.over and self.watched[run.key] is run:
                    del self.watched[run.key]
            time.sleep(0.005)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.is_disconnected = True


@pytest.fixture
def watcher(receiver: Receiver) -> Watcher:
    made = Watcher(receiver)
    made.start()
    return made


until = partial(support.until, what="news of it")


def test_a_run_that_is_watched_again_at_its_very_end_sends_its_end_again(
    receiver: Receiver, watcher: Watcher, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text(ENDED)

    def again(update: RunUpdate) -> None:  # in the middle of sending: as early as a receiver can ask
        if update.over and receiver.has_ends(1):
            watcher.watch(1, str(tmp_path), 0)

    receiver.on_update = again
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: receiver.has_ends(2))


def test_the_end_of_a_run_on_another_machine_comes_after_its_whole_log(
    receiver: Receiver, watcher: Watcher, tmp_path: Path
) -> None:
    """A file system that caches may show the status first."""
    job_file.write(str(tmp_path), SlurmJob(name="batch", id="7"))
    ended = {**json.loads(ENDED), "end": "exit", "exit_code": 0, "log_bytes": 9}
    (tmp_path / "status.json").write_text(json.dumps(ended))
    (tmp_path / "log").write_bytes(b"begin")
    polls: list[int] = []

    class Over(SlurmSession):
        def state(self, job: str) -> tuple[SlurmJobState, float]:
            polls.append(len(receiver.updates))
            return SlurmJobState("COMPLETED", exit_code=0), 0.0

    def join(status: Status) -> tuple[Status, bool]:
        return Over().join(str(tmp_path), status)

    watcher.watch(1, str(tmp_path), 0, join)
    until(lambda: len(polls) > 2)
    assert receiver.updates == []
    with open(tmp_path / "log", "ab") as log:
        log.write(b" end")
    until(lambda: receiver.has_ends(1))
    assert receiver.log == b"begin end"


def test_two_statuses_that_share_one_mtime_are_both_sent(receiver: Receiver, watcher: Watcher, tmp_path: Path) -> None:
    """A file system's clock may stand still for longer than an agent needs to write its last two."""
    running = Status("running", sequence=1, **processes.identity()._asdict())
    status = tmp_path / "status.json"
    for number, record in enumerate((running, replace(running, sequence=2), Status("ended", sequence=3)), 1):
        write_record(str(tmp_path / "new"), record)
        os.utime(tmp_path / "new", ns=(1, 1))
        (tmp_path / "new").replace(status)
        if number == 1:
            watcher.watch(1, str(tmp_path), 0)
        until(lambda: receiver.updates and receiver.updates[-1].status == record)  # noqa: B023
    assert receiver.has_ends(1)


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


def test_a_long_log_over_a_slow_link_arrives_packed(receiver: Receiver, watcher: Watcher, tmp_path: Path) -> None:
    watcher.link.is_slow = True
    log = b"".join(b"step %d\n" % step for step in range(100_000))
    (tmp_path / "log").write_bytes(log)
    (tmp_path / "status.json").write_text(ENDED)
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: receiver.has_ends(1))
    assert receiver.log == log
    assert receiver.kinds.count(frames.PACKED_LOG) > 0


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_what_a_job_puts_in_the_place_of_its_log_holds_up_nobody(
    receiver: Receiver, watcher: Watcher, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Who opens a pipe waits for a writer, and with it every run of the host."""
    make(tmp_path / "log")
    (tmp_path / "status.json").write_text(ENDED)
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: receiver.has_ends(1))


def test_a_run_whose_job_took_its_status_away_goes_on(
    receiver: Receiver, watcher: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, is_held, looks = agent_lock(str(tmp_path)), liveness.is_held, list[bool]()

    def look(path: str) -> bool:
        looks.append(is_held(path))
        return looks[-1]

    monkeypatch.setattr(liveness, "is_held", look)
    watcher.watch(1, str(tmp_path), 0)
    until(lambda: looks)
    (tmp_path / "status.json").write_text(json.dumps({"state": "running"}))
    until(lambda: receiver.updates)
    assert not receiver.updates[0].over
    lock.close()


def test_a_dead_agent_with_a_directory_for_a_status_has_ended(
    receiver: Receiver, watcher: Watcher, tmp_path: Path
) -> None:
    (tmp_path / "status.json" / "x").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for key in range(20):
        watcher.watch(key, str(tmp_path), 0)
    until(lambda: receiver.has_ends(20))
    assert receiver.updates[-1].gone
    assert len(os.listdir("/proc/self/fd")) < before + 20


def test_a_disk_that_is_full_anywhere_is_said_with_the_next_step() -> None:
    said = requests.explained(OSError(errno.ENOSPC, "No space left on device"))
    assert said.startswith("the host's disk is full: No space left on device; free some space there")
