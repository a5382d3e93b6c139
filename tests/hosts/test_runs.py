"""Runs on another host, through the real `serve`: sent, watched, brought home, cleared away."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent import archive, protocol
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.protocol import Request
from ci_tasks.agent.records import CheckoutPart, Plan, QueryAnswer, Status
from ci_tasks.agent.run_directory import RunDir, read_remote, read_status
from ci_tasks.checkout.snapshot import take_snapshot, thin_pack
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.hosts import runs
from ci_tasks.hosts.connection import Channel, ReconnectingConnection
from ci_tasks.hosts.runs import CLEARING, DONE, RemoteRun, RemoteRunManager, RunMirror, RunState, write_location
from ci_tasks.hosts.transport import LinkDied, first_bytes
from ci_tasks.records import BLOCKED, CANCELLED, LOST
from tests.fixtures import until
from tests.parts.json_files import read_json
from tests.parts.pipe_link import LinkTransport, PipeLink

TIMEOUT_S = 40.0


@dataclass
class PipedHost:
    """`links` are the connections made so far; `prepare` may put its own words before each command."""

    tmp: Path
    links: list[PipeLink] = field(default_factory=list)
    before: str = ""
    user: int | None = None
    managers: list[RemoteRunManager] = field(default_factory=list)
    spec: HostSpec = field(default_factory=lambda: HostSpec(name="box", kind="ssh", address="box"))

    @property
    def home(self) -> Path:
        return self.tmp / "box"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "PYTHON"))}
        return {**kept, "HOME": str(self.home)}

    def connect(self) -> PipeLink:
        link = _Preceded(self.before, self.environment(), self.user)
        self.links.append(link)
        return link

    def open(self) -> RemoteRunManager:
        memory = self.tmp / "memory.json"
        transport = LinkTransport(lambda: self.connect())
        manager = RemoteRunManager(ReconnectingConnection(self.spec, transport, memory))
        self.managers.append(manager)
        return manager

    def remote_run(self, script: str, name: str = "01", **more: Any) -> RemoteRun:
        run = RunDir(str(self.tmp / "here" / name))
        os.makedirs(run.path, exist_ok=True)
        options = {"timeout_minutes": 5, "stall_minutes": 5, "grace_seconds": 0.5, **more.pop("plan", {})}
        script = f"#!/bin/bash\n{script}"
        plan = Plan(id=f"batch.{name}", row="row", container=ContainerRules("none"), script=script, **options)
        directory = str(self.home / ".ci-tasks/runs/batch" / name)
        write_location(run, self.spec, directory)
        return RemoteRun(run=run, directory=directory, plan=plan, **more)

    def left(self) -> list[str]:
        """What is still on the host of any run."""
        return [str(path) for path in (self.home / ".ci-tasks/runs").rglob("*")]


class _Preceded(PipeLink):
    def __init__(self, before: str, environ: dict[str, str], user: int | None) -> None:
        super().__init__(environ, user=user)
        self._before = before

    def open(self, command: str) -> Any:
        return super().open(self._before + command)


def test_one_process_at_a_time_writes_the_files_of_a_run(tmp_path: Path) -> None:
    held = runs.lock_mirror(RunDir(str(tmp_path)))
    assert held is not None and runs.lock_mirror(RunDir(str(tmp_path))) is None
    held.close()


def test_a_connection_that_is_closed_while_the_agent_is_sent_hangs_up(tmp_path: Path) -> None:
    """The command at its other end lives as long as the socket, and would get heartbeats."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # less than the agent
    transport: Any = SimpleNamespace(python="", is_server_running=False, open=lambda _: ours, close=lambda: None)
    link = ReconnectingConnection(HostSpec("box"), transport, tmp_path / "memory")
    with theirs:
        sent = theirs.recv(1)
        link.close()
        while chunk := theirs.recv(1 << 18):
            sent += chunk
    packed = zlib.compress(archive.build(), 6)
    assert first_bytes(packed).startswith(sent)


LINES = "for n in $(seq 2000); do echo line $n; done; "


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PipedHost]:
    (tmp_path / "box").mkdir()
    made = PipedHost(tmp_path)
    yield made
    for manager in made.managers:
        manager.close()


def done(remote_run: RemoteRun) -> None:
    until(lambda: remote_run.phase == DONE or remote_run.aborted, f"the run is done; it is {remote_run.phase}")


def started(host: PipedHost, remote_run: RemoteRun) -> RemoteRunManager:
    manager = host.open()
    manager.send(remote_run)
    return manager


def ran(host: PipedHost, script: str = "true", name: str = "01", **more: Any) -> RemoteRun:
    """A run by a command of its own."""
    remote_run = host.remote_run(script, name, **more)
    manager = started(host, remote_run)
    done(remote_run)
    manager.close()
    return remote_run


def logged(remote_run: RemoteRun, log: bytes) -> None:
    until(lambda: Path(remote_run.run.log).read_bytes() == log, "the job has begun")


def begun(host: PipedHost, script: str = "echo begun; sleep 100", **more: Any) -> tuple[RemoteRun, RemoteRunManager]:
    """A run whose job has begun."""
    remote_run = host.remote_run(script, **more)
    manager = started(host, remote_run)
    logged(remote_run, b"begun\n")
    return remote_run, manager


def aborted(remote_run: RemoteRun, status: str) -> str:
    """Why."""
    assert remote_run.aborted is not None and remote_run.aborted[0] == status, remote_run.aborted
    return remote_run.aborted[1]


def status(remote_run: RemoteRun) -> Status:
    return read_status(remote_run.run)


def complete(remote_run: RemoteRun) -> bool:
    remote = read_remote(remote_run.run)
    return remote is not None and remote.complete


def gate(tmp_path: Path) -> tuple[str, Path]:
    """A line of script that waits for a file, and the file."""
    return f"while [ ! -e {shlex.quote(str(tmp_path / 'go'))} ]; do sleep 0.02; done; ", tmp_path / "go"


def test_a_run_comes_home_whole_and_leaves_nothing_there(host: PipedHost) -> None:
    remote_run = ran(host, LINES + 'echo "<testsuites/>" > "$CI_TASKS_RUN_DIR/artifacts/junit.xml"; exit 3')
    assert remote_run.aborted is None
    log = Path(remote_run.run.log).read_bytes()
    assert log == b"".join(b"line %d\n" % n for n in range(1, 2001))
    assert status(remote_run).exit_code == 3
    assert status(remote_run).log_sha256 == hashlib.sha256(log).hexdigest()
    assert Path(remote_run.run.junit).read_text() == "<testsuites/>\n"
    assert [json.loads(line)["event"] for line in Path(remote_run.run.events).read_text().splitlines()][-1] == "ended"
    assert complete(remote_run)
    assert host.left() == []


def test_a_link_that_dies_again_and_again_costs_not_a_byte(host: PipedHost, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    remote_run = host.remote_run(LINES + wait + LINES)
    manager = started(host, remote_run)
    for deaths in range(1, 4):
        until(lambda: manager.connection.is_up and remote_run.mirror and remote_run.mirror.offset, "output")
        host.links[-1].cut()
        until(lambda: len(host.links) > deaths, "another connection")  # noqa: B023
    go.touch()
    done(remote_run)
    assert Path(remote_run.run.log).read_bytes() == b"".join(b"line %d\n" % n for n in range(1, 2001)) * 2
    notices = [manager.connection.messages.get() for _ in range(manager.connection.messages.qsize())]
    assert any("is down" in line and "continue" in line for line in notices)
    assert any("is back" in line for line in notices)


@pytest.mark.parametrize(
    "before",
    ["echo 'Welcome! You have mail.'; ", "head -c 80000 /dev/zero | tr '\\0' -; echo; ", "read -r answer; "],
    ids=["a greeting", "one of 80 kB", "a question that the first line answers"],
)
def test_a_login_script_does_no_harm(host: PipedHost, before: str) -> None:
    host.before = before
    remote_run = ran(host, "echo hello")
    assert Path(remote_run.run.log).read_bytes() == b"hello\n"


@pytest.mark.parametrize(
    ("before", "message"),
    [
        # no python3 there
        ("PATH=/nonexistent; ", "python3: not found"),
        # an account that may not run commands
        ("echo 'This account is currently not available.'; exit 1; ", "This account is currently not available."),
        # a shell that talks for ever
        ("yes hello | head -c 3000000; exit 1; ", "a login script on the host prints endlessly; its last line: "),
        # one that takes what was for us
        ("head -c 30 > /dev/null; ", "a login script on the host reads standard input"),
    ],
)
def test_a_host_that_cannot_be_used_says_why(host: PipedHost, before: str, message: str) -> None:
    host.before = before
    remote_run = host.remote_run("true")
    manager = started(host, remote_run)
    done(remote_run)
    why = aborted(remote_run, BLOCKED)
    assert message in why and len(why) < 500
    with pytest.raises(Blocked):
        manager.connection.request(Request("runs"))


def agents(host: PipedHost) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in (host.home / ".ci-tasks/agents").iterdir()}


def test_the_agent_travels_and_is_compiled_once_and_again_where_the_host_has_lost_it(host: PipedHost) -> None:
    ran(host)
    first = agents(host)
    ran(host, "true", "02")
    assert agents(host) == first
    assert [path.name for path in first] == [read_json(str(host.tmp / "memory.json"))["compiled"]]
    for path in first:
        path.unlink()
    assert Path(ran(host, "echo three", "03").run.log).read_bytes() == b"three\n"
    assert agents(host).keys() == first.keys()


def test_agents_that_are_not_used_any_more_go_and_the_one_in_use_stays(host: PipedHost) -> None:
    ran(host)
    kept, old = agents(host), host.home / ".ci-tasks/agents/old"
    old.write_text("")
    link = host.open().connection
    link.hello()
    for path in (*kept, old):
        os.utime(path, (1, 1))
    link.request(Request("prune", days=14))
    assert agents(host) == kept


def test_an_agent_that_a_job_has_edited_does_not_run(host: PipedHost) -> None:
    """The next run goes on with the agent that its own client names."""
    guard = host.tmp / "guard"
    ran(host)
    agents = host.home / ".ci-tasks/agents"
    digest = read_json(str(host.tmp / "memory.json"))["compiled"]
    evil = f"import pathlib; pathlib.Path({str(guard)!r}).touch()\n".encode()
    with zipfile.ZipFile(io.BytesIO(archive.build())) as agent:
        files = {name: evil * name.endswith("__init__.py") + agent.read(name) for name in agent.namelist()}
    (agents / digest).write_bytes(archive.with_bytecode(archive.zipped(files)))
    assert Path(ran(host, "echo two", "02").run.log).read_bytes() == b"two\n"
    assert not guard.exists()


def test_agents_that_others_can_write_are_refused(host: PipedHost) -> None:
    (host.home / ".ci-tasks/agents").mkdir(parents=True)
    (host.home / ".ci-tasks/agents").chmod(0o770)
    with pytest.raises(Blocked, match="agents: can be written by others: chmod go-w"):
        host.open().connection.hello()


def lose_link(host: PipedHost, manager: RemoteRunManager) -> None:
    """There is no other one until `host.connect` is the old one again."""

    def refused() -> PipeLink:
        raise Blocked("refused")

    host.connect = refused  # type: ignore[method-assign]
    host.links[-1].cut()
    until(lambda: not manager.connection.is_up, "the link is down")


def test_a_cancel_while_the_link_is_down_reaches_the_host_when_it_is_back(host: PipedHost) -> None:
    (remote_run, manager), connect = begun(host), host.connect
    lose_link(host, manager)
    manager.end(remote_run, "cancel")
    assert not remote_run.is_fetched
    host.connect = connect  # type: ignore[method-assign]
    done(remote_run)
    assert status(remote_run).end == "cancelled"
    assert host.left() == []


def lose_link_while_clearing(host: PipedHost, remote_run: RemoteRun, back: threading.Event) -> RemoteRunManager:
    """The link dies when the run is to be cleared away; there is another one when `back` is set."""
    manager = host.open()
    clear, connect = manager._clear, host.connect

    def dies(remote_run: RemoteRun, channel: Any) -> Any:
        manager._clear = clear  # type: ignore[method-assign]
        host.connect = connect_again  # type: ignore[method-assign]
        host.links[-1].cut()
        return clear(remote_run, channel)

    def connect_again() -> PipeLink:
        back.wait(60)
        return connect()

    manager._clear = dies  # type: ignore[method-assign]
    manager.send(remote_run)
    until(lambda: remote_run.phase == CLEARING and not manager.connection.is_up, "the link is down")
    return manager


def test_a_run_is_cleared_away_although_the_link_died_at_that_moment(host: PipedHost) -> None:
    remote_run, back = host.remote_run("true"), threading.Event()
    manager = lose_link_while_clearing(host, remote_run, back)
    closing = threading.Thread(target=manager.close)
    closing.start()
    back.set()
    closing.join()
    assert not Path(remote_run.directory).exists()


def test_what_could_not_be_cleared_away_is_named_with_what_removes_it(
    host: PipedHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "_CLOSE_TIMEOUT_S", 0.1)
    remote_run, back = host.remote_run("true"), threading.Event()
    manager = lose_link_while_clearing(host, remote_run, back)
    manager.close()
    back.set()
    left = f"{remote_run.directory} is still on box, which did not answer; `ci-tasks clean --host box`"
    assert left in capsys.readouterr().err


def test_a_fetched_run_stays_fetched_when_the_link_dies_for_good(host: PipedHost) -> None:
    remote_run, manager = host.remote_run("echo hello"), host.open()

    def refused(*_: Any) -> None:
        raise Blocked("no link for 60 minutes")

    manager._clear = refused  # type: ignore[method-assign, assignment]
    manager.send(remote_run)
    done(remote_run)
    assert "no link for 60 minutes" in remote_run.warning
    assert remote_run.state == RunState(is_complete=True, note=remote_run.warning)
    assert complete(remote_run)


def test_a_kill_while_the_link_is_down_leaves_at_once_and_says_so(host: PipedHost) -> None:
    remote_run, manager = begun(host)
    lose_link(host, manager)
    manager.end(remote_run, "kill")
    aborted(remote_run, LOST)
    manager.close()
    again = RemoteRun(run=remote_run.run, directory=remote_run.directory)
    other = host.open()
    other.attach(again)
    other.end(again, "cancel")
    done(again)


def test_a_cancel_before_anything_was_sent_begins_nothing(host: PipedHost) -> None:
    remote_run = ran(host, "echo never", cancel_requested="cancel")
    assert remote_run.aborted == (CANCELLED, "cancelled")
    assert host.left() == []


def test_an_agent_that_was_killed_is_found_out_and_what_it_left_is_ended(host: PipedHost) -> None:
    remote_run = host.remote_run("echo $$; sleep 100")
    host.open().send(remote_run)
    until(lambda: Path(remote_run.run.log).read_bytes().endswith(b"\n"), "the job has begun")
    job = int(Path(remote_run.run.log).read_bytes())
    os.kill(int(read_status(RunDir(remote_run.directory)).pid or 0), signal.SIGKILL)
    done(remote_run)
    assert status(remote_run).gone
    assert remote_run.aborted is None
    until(lambda: not Path(f"/proc/{job}").exists(), "the job is gone")
    assert host.left() == []


def test_a_secret_reaches_the_job_and_nothing_else(host: PipedHost) -> None:
    value = "s3cr3t-value-of-a-token"
    script = 'echo "it is $TOKEN"; tr "\\0" "\\n" < /proc/$PPID/cmdline'
    remote_run = ran(host, script, plan={"secrets": ["TOKEN"]}, secrets={"TOKEN": value}, keep_remote=True)
    assert b"it is ***" in Path(remote_run.run.log).read_bytes()
    kept = [path for top in (host.home, host.tmp / "here") for path in top.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if value.encode() in path.read_bytes()]


def test_a_run_directory_outside_of_the_home_is_refused(host: PipedHost, tmp_path: Path) -> None:
    remote_run = host.remote_run("touch owned")
    remote_run.directory = str(tmp_path / "elsewhere")
    started(host, remote_run)
    done(remote_run)
    aborted(remote_run, BLOCKED)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_here_leaves_the_run_on_its_host(host: PipedHost, tmp_path: Path) -> None:
    remote_run = host.remote_run(LINES)
    manager: RemoteRunManager = host.open()
    manager.send(remote_run)
    until(lambda: remote_run.mirror, "its mirror")
    assert isinstance(remote_run.mirror, RunMirror)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, remote_run.mirror._log or 0)
    os.close(full)
    done(remote_run)
    assert "No space left on device" in aborted(remote_run, BLOCKED)
    assert host.left() != []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("name", "why"), [("", " belongs to root"), ("/new", ": Permission denied")])
def test_another_users_workspace_is_refused_with_its_owner_and_nothing_is_left_in_it(
    host: PipedHost, name: str, why: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as theirs:
        os.chmod(theirs, 0o755)
        host.spec, host.user = replace(host.spec, workspace=theirs + name), 65534
        with pytest.raises(Blocked, match="the workspace on the host cannot be used: .*" + why) as refused:
            host.open().connection.run_queries({}, 30)
        assert "`workspace` in hosts.yaml" in refused.value.hint
        assert os.listdir(theirs) == []


def test_programs_of_the_host_are_asked_in_the_environment_of_its_jobs(host: PipedHost) -> None:
    host.spec = replace(host.spec, env={"DOCKER_HOST": "unix:///theirs"})
    command = ["sh", "-c", "echo $DOCKER_HOST ${BASH_ENV-unset}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASH_ENV", "/mine")
        answers = host.open().connection.run_queries({"it": command}, 30)
    assert answers["it"] == QueryAnswer(0, "unix:///theirs unset\n")


# -- what can go wrong -----------------------------------------------------------------------------------------------


def code(monkeypatch: pytest.MonkeyPatch, pack: Callable[..., Iterator[bytes]]) -> Any:
    monkeypatch.setattr(runs, "thin_pack", pack)
    return SimpleNamespace(flat="0" * 40, checkout_parts=[CheckoutPart("", "0" * 40, "0" * 40)])


def test_a_run_that_is_cancelled_while_its_code_is_on_its_way_is_never_asked_for(
    host: PipedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*_: object) -> Iterator[bytes]:
        begun.set()
        go_on.wait(TIMEOUT_S)
        yield b""

    remote_run = host.remote_run("echo never", code=code(monkeypatch, slowly))
    manager = host.open()
    manager.send(remote_run)
    begun.wait(TIMEOUT_S)
    manager.end(remote_run, "cancel")
    assert remote_run.aborted == (CANCELLED, "cancelled")
    go_on.set()
    manager.close()
    assert complete(remote_run), "nobody has to come back for it"
    assert host.left() == []


@pytest.mark.parametrize("before", [[], [b"PACK"]], ids=["nothing sent", "half of it sent"])
def test_code_that_cannot_be_packed_ends_its_runs_and_neither_the_link_nor_another_run(
    host: PipedHost, tmp_path: Path, before: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[bytes]:
        yield from before
        raise Blocked("git is broken")

    wait, go = gate(tmp_path)
    other = host.remote_run(f"echo hello; {wait}")
    own = code(monkeypatch, broken)
    failing = [host.remote_run("echo never", name, code=own) for name in ("02", "03")]
    manager = host.open()
    for remote_run in (other, *failing):
        manager.send(remote_run)
    for remote_run in failing:
        done(remote_run)
        assert remote_run.aborted == (BLOCKED, "git is broken")
    go.touch()
    done(other)
    assert Path(other.run.log).read_bytes() == b"hello\n"
    assert len(host.links) == 1 and manager.connection.drain_messages() == []


@dataclass
class Code:
    """A checkout whose one file says what is to be seen."""

    host: PipedHost
    monkeypatch: pytest.MonkeyPatch
    meanwhile: Callable[[], Any] = lambda: None

    def __post_init__(self) -> None:
        source = self.host.tmp / "source"
        source.mkdir()
        (source / "file.txt").write_text("the very tree\n")
        self.snapshot = take_snapshot(source, self.host.tmp / "snapshot")
        self.monkeypatch.setattr(runs, "thin_pack", self.pack)

    def pack(self, snapshot: Any, known: Any) -> Iterator[bytes]:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        content = b"".join(thin_pack(snapshot, known))
        yield content[:20]
        meanwhile()
        yield content[20:]

    def run(self, name: str) -> RemoteRun:
        """A run of it by a command of its own."""
        workspace = str(self.host.home / ".ci-tasks/runs/batch" / name / "workspace")
        script = f"cat {shlex.quote(workspace)}/file.txt"
        return ran(self.host, script, name, plan={"workspace": workspace}, code=self.snapshot)


def _store(host: PipedHost) -> Path:
    return host.home / ".ci-tasks/store.git"


def _cut_packs(host: PipedHost) -> None:
    for file in _store(host).glob("objects/pack/*"):
        file.chmod(0o644)
        os.truncate(file, file.stat().st_size // 2)


def _lose(host: PipedHost, path: Path) -> None:
    """All at once: a directory that the host is writing in cannot be emptied file by file."""
    path.rename(tempfile.mkdtemp(dir=host.tmp))


LOSSES: dict[str, Callable[[PipedHost], Any]] = {
    "the whole store": lambda host: _lose(host, _store(host)),
    "all that is ours": lambda host: _lose(host, host.home / ".ci-tasks"),
    "half of each pack": _cut_packs,
    "every object": lambda host: _lose(host, _store(host) / "objects"),
    "the references": lambda host: _lose(host, _store(host) / "refs"),
}


def test_a_store_that_lost_something_heals_at_the_next_run_of_the_same_tree(
    host: PipedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Code(host, monkeypatch)
    code.run("first")
    for name, loss in LOSSES.items():
        loss(host)
        remote_run = code.run(name)
        assert remote_run.aborted is None, f"after the loss of {name}"
        assert Path(remote_run.run.log).read_bytes() == b"the very tree\n", f"after the loss of {name}"


@pytest.mark.parametrize("name", ["the whole store", "all that is ours", "every object"])
def test_what_is_removed_while_the_code_is_on_its_way_is_sent_again(
    host: PipedHost, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Code(host, monkeypatch)
    code.run("first")
    code.meanwhile = lambda: LOSSES[name](host)
    remote_run = code.run("second")
    assert remote_run.aborted is None
    assert Path(remote_run.run.log).read_bytes() == b"the very tree\n"


def test_a_run_that_the_host_cannot_begin_leaves_nothing_there(host: PipedHost) -> None:
    remote_run = host.remote_run("echo never")
    Path(remote_run.directory, "log").mkdir(parents=True)
    host.open().send(remote_run)
    done(remote_run)
    assert "the agent did not start" in aborted(remote_run, BLOCKED)
    assert host.left() == []


def test_a_run_that_was_made_but_never_begun_is_lost_and_cleared_away(host: PipedHost) -> None:
    """Its client was killed in between."""
    remote_run = host.remote_run("echo never")
    manager = host.open()
    manager.connection.request(
        Request("create", remote_run.directory, plan=remote_run.plan, script=remote_run.plan.script)
    )
    assert host.left() != []
    manager.attach(remote_run)
    done(remote_run)
    assert "never started" in aborted(remote_run, LOST)
    assert host.left() == []


def test_two_links_that_ask_for_one_run_begin_it_once(host: PipedHost, tmp_path: Path) -> None:
    """As when the link dies while the run is being sent, and all of it is sent again."""
    remote_run = host.remote_run(f"echo begun >> {shlex.quote(f'{tmp_path}/begun')}; sleep 0.3")
    channels = [host.open().connection.channel() for _ in range(4)]
    for channel in channels:
        channel.post(Request("programs", seconds=1.0)).wait()
    made = Request("create", remote_run.directory, plan=remote_run.plan, script=remote_run.plan.script, start=True)
    for pending in [channel.post(made) for channel in channels * 2]:
        pending.wait()
    until(lambda: read_status(RunDir(remote_run.directory)).has_ended, "the run ends")
    assert (tmp_path / "begun").read_text() == "begun\n"


def test_a_log_that_is_cut_here_while_it_grows_is_fetched_again(host: PipedHost, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    remote_run, _ = begun(host, f"echo begun; {wait}echo two")
    os.truncate(remote_run.run.log, 0)
    go.touch()
    done(remote_run)
    assert Path(remote_run.run.log).read_bytes() == b"begun\ntwo\n"


def test_a_kill_reaches_the_host_although_we_leave_at_once(host: PipedHost) -> None:
    """As where nobody reads what we print any more."""
    remote_run, manager = begun(
        host, "trap '' TERM; echo begun; while :; do sleep 0.1; done", plan={"grace_seconds": 60}
    )
    manager.end(remote_run, "kill")
    manager.close()
    assert status(remote_run).end == "cancelled"
    assert host.left() == []


def test_a_second_kill_waits_for_the_host_no_more(host: PipedHost) -> None:
    remote_run, manager = begun(host)
    pid = int(read_status(RunDir(remote_run.directory)).pid or 0)
    os.kill(pid, signal.SIGSTOP)
    manager.end(remote_run, "kill")
    manager.end(remote_run, "kill")
    aborted(remote_run, LOST)
    os.kill(pid, signal.SIGCONT)


def test_a_host_that_is_silent_from_the_start_is_a_dead_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci_tasks.hosts.connection.SILENCE_TIMEOUT_S", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(LinkDied, match="timed out"):
        Channel(ours, b"").hello()


def test_the_host_hears_of_us_while_git_makes_a_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes us for dead after 40 s; git needs longer before the first byte of a large tree on a busy machine."""
    monkeypatch.setattr("ci_tasks.hosts.connection.BEAT", 0.0)
    ours, theirs = socket.socketpair()
    frames = protocol.FrameReader()

    def pack() -> Iterator[bytes]:
        kinds = list[bytes]()
        while protocol.HEARTBEAT not in kinds:
            theirs.send(protocol.frame(protocol.HEARTBEAT))
            kinds = [kind for kind, *_ in frames.feed(theirs.recv(1 << 16))]
        yield b"pack"

    def read() -> None:
        with suppress(LinkDied):
            channel.read()

    with ours, theirs:
        theirs.settimeout(10)
        channel = Channel(ours, None)
        assert theirs.recv(1 << 16) == protocol.frame(protocol.HEARTBEAT)
        reader = threading.Thread(target=read)
        reader.start()
        channel.post(Request("receive"), pack=pack())
        assert [kind for kind, *_ in frames.feed(theirs.recv(1 << 16))][-2:] == [protocol.DATA] * 2
        channel.close()
        reader.join()


@pytest.mark.parametrize("more", [True, False], ids=["more rows may come", "no more rows"])
def test_what_rows_share_goes_with_the_last_row_unless_more_may_come(host: PipedHost, more: bool) -> None:
    """One row may be cleared away before the next one is there: it would find the venv of its batch gone."""
    venv = host.home / ".ci-tasks/runs/batch/environments/venv"
    venv.mkdir(parents=True)
    remote_run = host.remote_run("echo hello", keep_shared_files=more)
    manager = started(host, remote_run)
    done(remote_run)
    assert not Path(remote_run.directory).exists()
    assert venv.exists() == more
    manager.connection.request(Request("clear", str(venv)))
    assert host.left() == []


def test_a_run_that_is_only_made_is_whole_runs_by_hand_and_has_not_begun(
    host: PipedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has lost what this client believes that it has: all of the code is sent then."""
    code = Code(host, monkeypatch)
    workspace = str(host.home / ".ci-tasks/runs/batch/01/workspace")
    script = f"cat {shlex.quote(workspace)}/file.txt\n"
    remote_run = host.remote_run(script, plan={"workspace": workspace}, code=code.snapshot)
    manager = host.open()
    manager.connection.cache.trees = (code.snapshot.flat,)
    manager.create([remote_run])
    there = RunDir(remote_run.directory)
    assert os.access(there.adapter, os.X_OK) and not os.path.lexists(there.status)
    done = subprocess.run(["bash", there.script], capture_output=True, text=True, check=True)
    assert done.stdout == "the very tree\n"
