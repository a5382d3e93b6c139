"""Kept connections: when the process ends, connects again or refuses to answer; what it holds; where its socket is."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import protocol
from ci_tasks.hosts import mux
from ci_tasks.hosts.mux import MuxProcess
from tests.parts.imports import ROOT


class Server:
    """A channel to a server that repeats what it gets, and ends when a client closes it."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.closed = self.eof_received = False
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._theirs.recv(1 << 16):
                self._theirs.sendall(data)
        self._theirs.close()

    def sendall(self, data: bytes) -> None:
        self.ours.sendall(data)

    def recv(self, count: int) -> bytes:
        return self.ours.recv(count)

    def settimeout(self, seconds: float | None) -> None:
        self.ours.settimeout(seconds)

    def close(self) -> None:
        """As paramiko's: whoever reads gets the end."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)


class Connection:
    def __init__(self) -> None:
        self.is_up, self.servers, self.proofs = True, list[Server](), 0

    def channel(self, command: str) -> Server:
        self.servers.append(Server())
        return self.servers[-1]

    def prove(self) -> None:
        self.proofs += 1

    def close(self) -> None:
        self.is_up = False
        for server in self.servers:
            server.close()
            server.ours.close()


class World:
    """The process, as a thread, and its connection."""

    def __init__(self, path: Path, idle_s: float = 600.0) -> None:
        self.path, self.connection = path, Connection()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.process = MuxProcess(self.listener, "box", self.connection)  # type: ignore[arg-type]
        self.process._idle_s = idle_s
        self.thread = threading.Thread(target=self.process.serve, daemon=True)
        self.thread.start()

    def open(self, command: str = "serve") -> tuple[socket.socket, bytes]:
        sock = mux._dial(self.path)
        return sock, mux._request(sock, "open", command)

    def status(self) -> dict[str, Any]:
        return mux._ask(self.path, "status")

    def until_unused(self) -> None:
        while self.status()["commands"]:
            pass


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "s")
    yield made
    made.path.unlink(missing_ok=True)
    made.thread.join(10)
    assert not made.thread.is_alive()


GOODBYE = protocol.frame(protocol.GOODBYE, b"0123456789abcdef")


@pytest.mark.parametrize("last", [b"hello", bytes(1 << 20)], ids=["a word", "much that was on its way to it"])
def test_a_server_that_a_client_left_with_a_goodbye_serves_the_next_one(world: World, last: bytes) -> None:
    first, said = world.open()
    assert said == mux.READY
    sending = threading.Thread(target=first.sendall, args=(last + GOODBYE,))
    sending.start()
    while sending.is_alive():  # it reads only as much as it must
        first.recv(1 << 14)
        sending.join(0.001)
    first.close()
    world.until_unused()
    second, said = world.open()
    assert said == mux.HELD
    second.sendall(b"again")
    assert second.recv(100) == b"again"
    assert (len(world.connection.servers), world.connection.proofs) == (1, 0)
    second.close()


def test_a_server_whose_client_went_away_ends_with_it(world: World) -> None:
    first, _ = world.open()
    first.sendall(b"half of a frame")
    first.close()
    world.until_unused()
    assert world.connection.servers[0].closed
    second, said = world.open()
    assert said == mux.READY
    second.close()


def test_a_server_is_held_for_its_own_command_and_an_idle_connection_is_tried_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = world.open("serve one")
    first.sendall(GOODBYE)
    first.close()
    world.until_unused()
    second, said = world.open("serve another")
    assert said == mux.READY
    second.close()
    monkeypatch.setattr(mux, "_TRUST_S", -1.0)
    third, said = world.open("serve one")
    assert (said, world.connection.proofs) == (mux.HELD, 1)
    third.close()


def test_it_ends_when_it_is_not_used_for_a_while_or_its_socket_is_removed(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other", idle_s=0.0)
    world.path.unlink()
    for each in (world, other):
        each.thread.join(10)
        assert not each.thread.is_alive() and not each.path.exists() and not each.connection.is_up


@pytest.mark.parametrize("text", [b"[]\n", b'"end"\n', b"7\n", b"no line"])
def test_what_is_no_request_gets_no_channel_and_ends_nothing(world: World, text: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(world.path))
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while sock.recv(100):
                pass
    assert (world.status()["commands"], world.status()["is_up"], world.connection.servers) == (0, True, [])


def test_its_name_depends_on_every_module_that_it_runs() -> None:
    script = (
        "import sys; import ci_tasks.hosts.mux, ci_tasks.hosts.ssh; import ci_tasks.agent.files; "
        "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('ci_tasks')), sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {Path(file).relative_to(ROOT / "ci_tasks").with_suffix("").as_posix() for file in run.stdout.splitlines()}
    stamped = {path for names in mux.MODULES for path in (ROOT / "ci_tasks").glob(names)}
    assert loaded <= {path.relative_to(ROOT / "ci_tasks").with_suffix("").as_posix() for path in stamped}


# Where the sockets are


@pytest.fixture
def short() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's; pytest's own may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("what", ["open to others", "missing", "a link", "its own is open to others"])
def test_without_one_there_is_none(what: str, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short / "run"
    if what == "a link":
        (short / "there").mkdir(mode=0o700)
        runtime.symlink_to(short / "there")
    elif what != "missing":
        runtime.mkdir(mode=0o755 if what == "open to others" else 0o700)
    if what == "its own is open to others":
        (runtime / "ci-tasks").mkdir()
        (runtime / "ci-tasks").chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert mux.directory() is None


def test_its_process_finds_the_packages_of_the_command_and_none_of_its_own_directory(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of PYTHONPATH too. As `paramiko` is loaded for the first connection, this one says where it was found."""
    path, found = mux.MuxTransport(short, "127.0.0.1:1").path, tmp_path / "found"
    for directory in (tmp_path, short):
        (directory / "paramiko.py").write_text(f"with open({str(found)!r}, 'a') as out: out.write(__file__)\n")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    with contextlib.suppress(OSError), mux._started(path or short, "127.0.0.1:1") as sock:
        mux._request(sock, "open", "true")
    assert found.read_text() == str(tmp_path / "paramiko.py")


def test_a_directory_of_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 2**31 + os.getpid())
    place = Path(f"/tmp/ci-tasks-{os.geteuid()}")
    place.mkdir(mode=0o700)  # the other user was quicker
    try:
        assert mux.directory() is None
    finally:
        place.rmdir()
