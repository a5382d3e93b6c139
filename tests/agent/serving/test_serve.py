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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive, processes
from ci_tasks.agent.codec import from_json
from ci_tasks.agent.liveness import agent_lock
from ci_tasks.agent.records import Plan, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, read_status, write_record
from ci_tasks.agent.serving import protocol, requests
from ci_tasks.agent.serving.protocol import Request, RunUpdate
from ci_tasks.agent.serving.serve import Join, RunFollower
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.job_file import SlurmJobState
from ci_tasks.agent.slurm.session import SlurmSession
from ci_tasks.hosts import bootstrap
from tests import fixtures as support

SOURCES = archive.build()


class Client:
    """Speaks to a server of its own. `said` are the host's records by kind and number, `data` what came with them."""

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
        self._reader = protocol.FrameReader()
        self.said: dict[tuple[bytes, int], dict[str, Any]] = {}
        self.raw = self.data = b""

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def ask(self, number: int, request: Request) -> None:
        self.send(protocol.message(protocol.REQUEST, number, request))

    def hello(self) -> dict[str, Any]:
        while protocol.MAGIC not in self.raw:
            self.raw += self._receive()
        rest = self.raw.partition(protocol.MAGIC)[2]
        self.raw = b""
        self._take(rest)
        return self._record(protocol.HELLO, 0)

    def answer(self, number: int) -> dict[str, Any]:
        return self._record(protocol.ANSWER, number)

    def end(self, number: int) -> dict[str, Any]:
        """The last update of a run that is followed."""
        while not (update := self._record(protocol.UPDATE, number)).get("over"):
            del self.said[protocol.UPDATE, number]
        return update

    def _record(self, kind: bytes, number: int) -> dict[str, Any]:
        while (kind, number) not in self.said:
            self._take(self._receive())
        return self.said[kind, number]

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
        for kind, number, _, payload in self._reader.feed(data):
            if kind in (protocol.HELLO, protocol.ANSWER, protocol.UPDATE):
                self.said[kind, number] = json.loads(payload)
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
    for number, payload in enumerate((b"{", b"[]", b'{"do": "no such thing"}')):
        client.send(protocol.frame(protocol.REQUEST, payload, number))
    client.ask(5, Request("runs"))
    assert [client.answer(number)["code"] for number in range(3)] == ["unknown"] * 3
    assert client.answer(5) == {}


def test_a_question_that_takes_long_keeps_no_other_waiting(client: Client) -> None:
    client.hello()
    wait = ("sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done', f"{client.home}/go")
    client.ask(1, Request("programs", commands={"slow": wait}, seconds=50.0))
    client.ask(2, Request("programs", commands={"go": ("touch", f"{client.home}/go")}, seconds=50.0))
    assert client.answer(2)["outputs"]["go"]["code"] == 0
    assert client.answer(1)["outputs"]["slow"]["code"] == 0


def test_what_follows_a_request_that_is_refused_is_taken_for_no_other(client: Client) -> None:
    client.hello()
    for number in (1, 3):
        client.ask(number, Request("receive"))
        for _ in range(3):
            client.send(protocol.frame(protocol.DATA, os.urandom(1 << 20), number))
        client.send(protocol.frame(protocol.DATA, b"", number))
    client.ask(4, Request("runs"))
    assert client.answer(1)["code"] == client.answer(3)["code"] == "missing-base"
    assert client.answer(4) == {}


def test_a_run_that_is_cancelled_before_it_starts_never_does(client: Client) -> None:
    """By whoever asks, and over another connection than the one that starts it."""
    client.hello()
    path, run = plan_of(client)
    made = Request("create", path, plan=Plan(id="batch.01"), script=f"touch {shlex.quote(str(client.home))}/ran\n")
    client.ask(1, made)
    assert client.answer(1) == {}
    other = Client(client.home)
    other.hello()
    other.ask(1, Request("cancel", path))
    assert other.answer(1) == {}
    other.close()
    client.ask(2, replace(made, start=True))
    client.ask(3, Request("follow", path))
    assert client.answer(2) == {}
    assert client.end(3)["status"]["end"] == "cancelled"
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
    client.ask(1, Request("collect", path, secrets=given))
    assert client.answer(1) == {}
    assert ("s3cret" in Path(run.agent_log).read_text()) is left
    assert (b"agent.log" in client.data) is (masked or bool(given))
    assert (b"s3cret" in client.data) is masked


def test_a_client_that_says_goodbye_leaves_the_server_to_the_next_one(client: Client) -> None:
    client.hello()
    goodbye = protocol.frame(protocol.GOODBYE, b"0123456789abcdef")
    client.ask(1, Request("programs", commands={"slow": ("sleep", "300")}, seconds=300.0))
    client.send(goodbye)
    assert client.repeated(goodbye)
    client.send(protocol.frame(protocol.HEARTBEAT))
    client.said.clear()
    assert client.hello()["home"] == str(client.home)
    client.ask(2, Request("runs"))
    assert client.answer(2) == {}


def test_a_server_whose_client_has_gone_ends_and_the_run_goes_on(client: Client, tmp_path: Path) -> None:
    client.hello()
    path, run = plan_of(client)
    script = f"#!/bin/bash\nuntil [ -e {shlex.quote(str(tmp_path))}/go ]; do sleep 0.02; done; exit 5\n"
    client.ask(1, Request("create", path, plan=Plan(id="batch.01"), script=script, start=True))
    assert client.answer(1) == {}
    client.close()
    (tmp_path / "go").touch()
    other = Client(client.home)
    other.hello()
    other.ask(1, Request("follow", path))
    assert other.end(1)["status"]["exit_code"] == read_status(run).exit_code == 5
    other.close()


def test_runs_are_listed_by_their_directories_whatever_jobs_have_made_of_them(tmp_path: Path) -> None:
    """Half of one was removed, one claims to be another, one has a name that no run has, one is a link."""
    for path in (
        "batch/01/plan.json",
        "batch/02/workspace/01/file",
        "batch/environments/abc/run.sh",
        "b\nc/01/plan.json",
    ):
        file = tmp_path / "runs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"id": "another.07"}')
    (tmp_path / "runs/batch/03").symlink_to(tmp_path / "runs/batch/01")
    runs = requests.list_runs(str(tmp_path))
    assert [(run.id, run.is_row, run.state) for run in runs] == [
        ("batch.01", True, "planned"),
        ("batch.02", True, "planned"),
        ("batch/environments/abc", False, "planned"),
    ]


# -- a run that is followed ------------------------------------------------------------------------------------------

ENDED = json.dumps({"state": "ended", "log_sha256": "x"})


class Following:
    """A run as a client has it, looked at again and again, as the server's loop does."""

    def __init__(self, run_dir: Path, join: Join | None = None) -> None:
        self._reader = protocol.FrameReader()
        self.updates, self.log, self.kinds = list[RunUpdate](), b"", list[bytes]()
        self.session = requests.Session(str(run_dir), b"", "", 0)
        server: Any = self
        self._follower = RunFollower(server, 1, Request("follow", str(run_dir)), join)

    def send(self, data: bytes) -> None:
        for kind, _, _, payload in self._reader.feed(data):
            self.kinds.append(kind)
            if kind == protocol.UPDATE:
                self.updates.append(from_json(RunUpdate, payload, where="update"))
            else:
                self.log += protocol.unpacked(payload) if kind == protocol.PACKED else payload

    def poll(self) -> bool:
        """Whether it is over."""
        if not self._follower.is_over:
            with contextlib.suppress(OSError, ValueError):
                self._follower.poll()
        return self._follower.is_over

    def until(self, condition: Callable[[], object]) -> None:
        support.until(lambda: [self.poll(), condition()][1], what="news of it")

    def to_its_end(self) -> None:
        self.until(self.poll)
        assert [update.over for update in self.updates].count(True) == 1


def test_the_end_of_a_run_on_another_machine_comes_after_its_whole_log(tmp_path: Path) -> None:
    """A file system that caches may show the status first."""
    job_file.write(str(tmp_path), SlurmJob(name="batch", id="7"))
    ended = {**json.loads(ENDED), "end": "exit", "exit_code": 0, "log_bytes": 9}
    (tmp_path / "status.json").write_text(json.dumps(ended))
    (tmp_path / "log").write_bytes(b"begin")
    polls: list[str] = []

    class Over(SlurmSession):
        def state(self, job: str) -> tuple[SlurmJobState, float]:
            polls.append(job)
            return SlurmJobState("COMPLETED", exit_code=0), 0.0

    following = Following(tmp_path, lambda status: Over().join(str(tmp_path), status))
    following.until(lambda: len(polls) > 2)
    assert following.updates == []
    with open(tmp_path / "log", "ab") as log:
        log.write(b" end")
    following.to_its_end()
    assert following.log == b"begin end"


def test_two_statuses_that_share_one_mtime_are_both_sent(tmp_path: Path) -> None:
    """A file system's clock may stand still for longer than an agent needs to write its last two."""
    running = Status("running", sequence=1, **processes.identity()._asdict())
    following = Following(tmp_path)
    for record in (running, replace(running, sequence=2), Status("ended", sequence=3)):
        write_record(str(tmp_path / "new"), record)
        os.utime(tmp_path / "new", ns=(1, 1))
        (tmp_path / "new").replace(tmp_path / "status.json")
        following.until(lambda: following.updates and following.updates[-1].status == record)  # noqa: B023
    following.to_its_end()


def test_a_long_log_arrives_packed(tmp_path: Path) -> None:
    log = b"".join(b"step %d\n" % step for step in range(100_000))
    (tmp_path / "log").write_bytes(log)
    (tmp_path / "status.json").write_text(ENDED)
    following = Following(tmp_path)
    following.to_its_end()
    assert following.log == log
    assert protocol.PACKED in following.kinds


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_what_a_job_puts_in_the_place_of_its_log_holds_up_nobody(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Who opens a pipe waits for a writer, and with it every run of the host."""
    make(tmp_path / "log")
    (tmp_path / "status.json").write_text(ENDED)
    Following(tmp_path).to_its_end()


def test_a_run_whose_job_took_its_status_away_goes_on(tmp_path: Path) -> None:
    with agent_lock(str(tmp_path)):
        following = Following(tmp_path)
        following.poll()
        (tmp_path / "status.json").write_text(json.dumps({"state": "running"}))
        following.until(lambda: following.updates)
    assert not following.updates[0].over


def test_a_dead_agent_with_a_directory_for_a_status_has_ended(tmp_path: Path) -> None:
    (tmp_path / "status.json" / "x").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        following = Following(tmp_path)
        following.to_its_end()
        assert (following.updates[-1].status or Status()).gone
    assert len(os.listdir("/proc/self/fd")) < before + 20


def test_a_disk_that_is_full_anywhere_is_said_with_the_next_step() -> None:
    said = requests.explained(OSError(errno.ENOSPC, "No space left on device"))
    assert said.startswith("the host's disk is full: No space left on device; free some space there")
