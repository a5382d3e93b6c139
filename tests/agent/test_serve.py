"""The server's loop: requests in and answers out over a socket, as a client has them; runs that it follows or lists."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shlex
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive, processes, protocol, serve, slurm
from ci_tasks.agent.codec import from_json
from ci_tasks.agent.processes import agent_lock
from ci_tasks.agent.protocol import Answer, Request, RunUpdate
from ci_tasks.agent.records import Plan, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, read_status, write_record
from ci_tasks.agent.serve import Join, RunFollower
from ci_tasks.agent.slurm import SlurmJobState, SlurmSession
from ci_tasks.hosts.connection import Channel, PendingRequest, RequestRefused, unpacked
from ci_tasks.hosts.transport import LinkDied, LocalTransport, start_command
from tests import fixtures as support

SOURCES = archive.build()
until = partial(support.until, what="news of it")


class Client:
    """The product's own, with a server of its own. `data` is what came before an answer."""

    def __init__(self, home: Path) -> None:
        self.home, self.data, self.updates = home, b"", list[RunUpdate]()
        self._transport = LocalTransport()
        command = start_command(str(home), hashlib.sha256(SOURCES).hexdigest(), "", self._transport.python)
        self.sock = self._transport.open(command)
        self.connect(zlib.compress(SOURCES))

    def connect(self, first: bytes | None) -> None:
        self.channel = Channel(self.sock, first)
        assert self.channel.hello().home == str(self.home)

    def read(self) -> None:
        with contextlib.suppress(LinkDied):
            self.channel.read()

    def post(self, request: Request, pack: list[bytes] | None = None) -> PendingRequest:
        return self.channel.post(request, self._take, pack)

    def ask(self, request: Request, pack: list[bytes] | None = None) -> Answer:
        return self.post(request, pack).wait()

    def _take(self, kind: bytes, offset: int, payload: bytes) -> None:
        if kind == protocol.UPDATE:
            self.updates.append(from_json(RunUpdate, payload, where="update"))
        else:
            self.data += payload

    def close(self) -> None:
        self.channel.close()
        self.sock.close()
        self._transport.close()


@pytest.fixture
def open_client(tmp_path: Path) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def opened() -> Client:
        clients.append(Client(tmp_path / "home"))
        threading.Thread(target=clients[-1].read, daemon=True).start()
        return clients[-1]

    yield opened
    for client in clients:
        client.close()


@pytest.fixture
def client(open_client: Callable[[], Client]) -> Client:
    return open_client()


def plan_of(client: Client, name: str = "01") -> tuple[str, RunDir]:
    path = str(client.home / "runs/batch" / name)
    return path, RunDir(path)


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"do": "no such thing"}'])
def test_a_request_that_cannot_be_understood_is_refused_and_ends_nothing(client: Client, payload: bytes) -> None:
    pending = client.channel._pending[77] = PendingRequest(lambda *_: None)
    client.sock.sendall(protocol.frame(protocol.REQUEST, payload, 77))
    with pytest.raises(RequestRefused) as refused:
        pending.wait()
    assert refused.value.code == "unknown"
    client.post(Request("follow", "/elsewhere"))
    until(lambda: [each for each in client.updates if each.over and each.problem.startswith("/elsewhere ")])


def test_a_question_that_takes_long_keeps_no_other_waiting(client: Client) -> None:
    wait = ("sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done', f"{client.home}/go")
    slow = client.post(Request("programs", commands={"slow": wait}, seconds=50.0))
    go = client.ask(Request("programs", commands={"go": ("touch", f"{client.home}/go")}, seconds=50.0))
    assert go.outputs["go"].code == slow.wait().outputs["slow"].code == 0


def test_a_command_of_this_machine_has_a_session_of_its_own_which_ctrl_c_does_not_reach() -> None:
    with contextlib.closing(LocalTransport()) as here, here.open("cut -d' ' -f6 /proc/$$/stat") as out:
        assert int(out.makefile().read()) != os.getsid(0)


def test_what_follows_a_request_that_is_refused_is_taken_for_no_other(client: Client) -> None:
    refused = [client.post(Request("receive"), [os.urandom(1 << 20)] * 3) for _ in range(2)]
    assert client.ask(Request("runs")) == Answer()
    assert client.ask(Request("prune", days=9)).lines[0].startswith("old objects: ")
    for each in refused:
        with pytest.raises(RequestRefused) as reason:
            each.wait()
        assert reason.value.code == "missing-base"


CANCELLED = Status("ended", "ended", 1, end="cancelled", log_sha256=hashlib.sha256().hexdigest(), masked=True)


def test_a_run_that_is_cancelled_before_it_starts_never_does(open_client: Callable[[], Client]) -> None:
    """By whoever asks, and over another connection than the one that starts it."""
    client = open_client()
    path, run = plan_of(client)
    made = Request("create", path, plan=Plan(id="batch.01"), script=f"touch {shlex.quote(str(client.home))}/ran\n")
    client.ask(made)
    with pytest.raises(RequestRefused, match="the run has not started"):
        client.ask(Request("look", path, look="a1"))
    open_client().ask(Request("cancel", path))
    client.ask(replace(made, start=True))
    client.post(Request("follow", path))
    until(lambda: client.updates and client.updates[-1].over)
    assert replace(read_status(run), started_at=None, ended_at=None) == CANCELLED
    assert not (client.home / "ran").exists()


@pytest.mark.parametrize(
    ("masked", "given", "left"), [(False, {"TOKEN": "s3cret"}, False), (True, {}, True), (False, {}, True)]
)
def test_the_files_of_an_agent_that_died_before_it_masked_are_masked_before_they_are_sent(
    client: Client, masked: bool, given: dict[str, str], left: bool
) -> None:
    """One that had masked needs no secret; without its secrets nothing of a run is sent."""
    path, run = plan_of(client)
    os.makedirs(path)
    write_record(run.status, Status(state="ended", secrets=("TOKEN",), masked=masked))
    Path(run.agent_log).write_text("it is s3cret")
    os.mkdir(run.evidence)  # by a program that outlived the run
    Path(run.evidence, "1-1-a.jsonl").write_text('{"event": "start", "pid": 1, "start": 1, "argv": ["s3cret"]}\n')
    client.ask(Request("collect", path, secrets=given))
    assert ("s3cret" in Path(run.agent_log).read_text()) is left
    assert (b"agent.log" in client.data) is (masked or bool(given))
    assert (b"s3cret" in client.data) is masked
    assert not (masked and os.path.exists(run.evidence_file)), "what came later is not masked"


def test_a_client_that_says_goodbye_leaves_the_server_to_the_next_one(tmp_path: Path) -> None:
    client, goodbye, said = Client(tmp_path / "home"), protocol.frame(protocol.GOODBYE, b"0123456789abcdef"), b""
    client.post(Request("programs", commands={"slow": ("sleep", "300")}, seconds=300.0))
    client.sock.sendall(goodbye)
    while goodbye not in said:
        said += client.sock.recv(1 << 16)
    client.connect(None)
    threading.Thread(target=client.read, daemon=True).start()
    assert client.ask(Request("runs")) == Answer()
    shutil.rmtree(client.home)  # as a person does who removes everything
    with pytest.raises(RequestRefused, match="index-pack"):
        client.ask(Request("receive"), [b"no pack"])
    client.close()


def test_runs_are_listed_by_their_directories_whatever_jobs_have_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one was removed, one claims to be another, one has a name that no run has, one is a link. Whether a job
    of Slurm is alive, squeue says."""
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
    monkeypatch.setattr(slurm, "may_run", lambda jobs: dict.fromkeys(jobs, True))
    for path, record in (
        ("1/status", Status("running")),
        ("2/status", Status("running")),
        ("1/slurm", SlurmJob(id="7")),
    ):
        write_record(str(tmp_path / f"runs/batch/0{path}.json"), record)
    runs = serve.list_runs(str(tmp_path))
    assert [(run.id, run.is_row, run.state, run.alive) for run in runs] == [
        ("batch.01", True, "running", True),
        ("batch.02", True, "running", False),
        ("batch/environments/abc", False, "planned", False),
    ]


# -- a run that is followed ------------------------------------------------------------------------------------------

ENDED = json.dumps({"state": "ended", "log_sha256": "x"})


class Following:
    """A run as a client has it, looked at again and again, as the server's loop does."""

    def __init__(self, run_dir: Path, join: Join | None = None) -> None:
        self._reader = protocol.FrameReader()
        self.updates, self.log, self.kinds = list[RunUpdate](), b"", list[bytes]()
        self.session = serve.Session(str(run_dir), b"", "", 0)
        server: Any = self
        self._follower = RunFollower(server, 1, Request("follow", str(run_dir)), join)

    def send(self, data: bytes) -> None:
        for kind, _, _, payload in self._reader.feed(data):
            self.kinds.append(kind)
            if kind == protocol.UPDATE:
                self.updates.append(from_json(RunUpdate, payload, where="update"))
            else:
                self.log += unpacked(payload) if kind == protocol.PACKED else payload

    def poll(self) -> bool:
        """Whether it is over."""
        if not self._follower.is_over:
            with contextlib.suppress(OSError, ValueError):
                self._follower.poll()
        return self._follower.is_over

    def until(self, condition: Callable[[], object]) -> None:
        until(lambda: [self.poll(), condition()][1])

    def to_its_end(self) -> None:
        self.until(self.poll)
        assert [update.over for update in self.updates].count(True) == 1


def test_the_end_of_a_run_on_another_machine_comes_after_its_whole_log(tmp_path: Path) -> None:
    """A file system that caches may show the status first."""
    write_record(RunDir(str(tmp_path)).slurm_job, SlurmJob(name="batch", id="7"))
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
    said = serve.explained(OSError(errno.ENOSPC, "No space left on device"))
    assert said.startswith("the host's disk is full: No space left on device; free some space there")
