"""When a process that keeps a connection ends, connects again, or answers nobody; and what it holds for the next."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.serving import frames
from ci_tasks.hosts import mux, mux_client, mux_process
from ci_tasks.hosts.mux_process import MuxProcess
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
        self.process = MuxProcess(self.listener, "box", self.connection, idle_s)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.process.serve, daemon=True)
        self.thread.start()

    def open(self, command: str = "serve") -> tuple[socket.socket, bytes]:
        sock = mux.dial(self.path)
        assert sock is not None
        return sock, mux.request(sock, {"open": command})

    def status(self) -> dict[str, Any]:
        sock = mux.dial(self.path)
        assert sock is not None
        with sock:
            assert mux.request(sock, {"status": True}) == mux.READY
            return mux.answer(sock)

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


GOODBYE = frames.frame(frames.GOODBYE, b"0123456789abcdef")


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
    assert len(world.connection.servers) == 1
    second.close()


@pytest.mark.parametrize("last", [b"", b"half of a frame"])
def test_a_server_whose_client_went_away_ends_with_it(world: World, last: bytes) -> None:
    first, _ = world.open()
    first.sendall(b"hello" + last)
    first.close()
    world.until_unused()
    assert world.connection.servers[0].closed
    second, said = world.open()
    assert said == mux.READY
    second.close()


def test_a_server_is_held_for_its_own_command_only(world: World) -> None:
    first, _ = world.open("serve one")
    first.sendall(GOODBYE)
    first.close()
    world.until_unused()
    second, said = world.open("serve another")
    assert said == mux.READY
    second.close()


def test_a_connection_that_was_idle_is_tried_before_a_server_of_it_is_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = world.open()
    first.sendall(GOODBYE)
    first.close()
    world.until_unused()
    monkeypatch.setattr(mux_process, "_TRUST_S", -1.0)
    second, said = world.open()
    assert (said, world.connection.proofs) == (mux.HELD, 1)
    second.close()


def test_it_ends_when_nobody_has_used_it_for_a_while(tmp_path: Path) -> None:
    world = World(tmp_path / "s", idle_s=0.0)
    world.thread.join(10)
    assert not world.thread.is_alive() and not world.path.exists() and not world.connection.is_up


def test_it_ends_when_its_socket_is_removed(world: World) -> None:
    world.path.unlink()
    world.thread.join(10)
    assert not world.thread.is_alive()


def test_another_user_gets_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux_process, "is_ours", lambda sock: False)
    sock = mux.dial(world.path)
    assert sock is not None
    with sock, contextlib.suppress(OSError):
        mux.request(sock, {"open": "serve"})
    assert world.connection.servers == []


@pytest.mark.parametrize("text", [b"[]\n", b"{\n", b"\xff\n", b"no line"])
def test_what_is_no_request_gets_no_channel_and_ends_nothing(world: World, text: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(world.path))
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while sock.recv(100):
                pass
    assert world.status()["commands"] == 0
    assert world.connection.servers == []


def test_the_kernel_says_whose_the_other_end_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert mux.is_ours(one)
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        assert not mux.is_ours(one)


def test_its_name_depends_on_every_module_that_it_runs() -> None:
    import subprocess

    script = (
        "import sys; import ci_tasks.hosts.mux_process, ci_tasks.hosts.mux_client; "
        "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('ci_tasks')))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {Path(file).relative_to(ROOT / "ci_tasks").with_suffix("").as_posix() for file in run.stdout.split()}
    assert loaded == set(mux_client.MODULES)
