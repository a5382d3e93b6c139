"""When a process that keeps a connection ends, connects anew, or answers nobody."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci_tasks.executors.kept import wire
from ci_tasks.executors.kept.keeper import Keeper


class Stream:
    """One that has no output, and has ended at once for whoever reads."""

    def send(self, data: bytes) -> None: ...
    def recv(self, n: int) -> bytes:
        return b""

    def settimeout(self, seconds: float | None) -> None: ...
    def stderr_tail(self) -> bytes:
        return b""

    def shut_write(self) -> None: ...
    def exit_status(self) -> int | None:
        return 0

    def close(self) -> None: ...


class Link:
    description = "box"

    def __init__(self) -> None:
        self.alive, self.silent_for = True, 0.0

    def open(self, command: str) -> Stream:
        return Stream()

    def interactive(self, command: str) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self.alive = False


class World:
    """A keeper in a thread, the connections that it made, and its clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.links, self.time = path, list[Link](), 0.0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.keeper = Keeper(self.listener, "box", self.connect, idle_s=600.0, now=lambda: self.time)
        self.thread = threading.Thread(target=self.keeper.serve, daemon=True)
        self.thread.start()

    def connect(self) -> Link:
        self.links.append(Link())
        return self.links[-1]

    def ask(self, request: dict[str, object]) -> tuple[bytes, dict[str, object]]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.path))
            wire.send_request(sock, request)
            answer = wire.read_object(sock)
            while sock.recv(100):
                pass
        if "open" in request:
            while self.ask({"status": True})[1]["commands"]:
                pass
        return answer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "s")
    yield made
    if made.thread.is_alive():
        made.ask({"end": True})
    made.thread.join(10)
    assert not made.thread.is_alive() and not made.path.exists()


def test_it_ends_when_nobody_has_used_it_for_ten_minutes_and_questions_do_not_count(world: World) -> None:
    world.ask({"open": "true"})
    world.time = 599.0
    assert world.ask({"status": True})[1]["seconds_left"] == 1.0
    world.time = 601.0
    world.thread.join(10)
    assert not world.thread.is_alive() and not world.path.exists()
    assert not world.links[0].alive


SUSPECT: list[tuple[str, Callable[[Link], object], int]] = [
    ("it lives", lambda link: None, 1),
    ("it is dead", lambda link: link.close(), 2),
    ("it was silent, as after a nap", lambda link: setattr(link, "silent_for", 9.0), 2),
]


@pytest.mark.parametrize(("happen", "connections"), [case[1:] for case in SUSPECT], ids=[case[0] for case in SUSPECT])
def test_a_connection_is_used_again_only_where_it_is_known_to_live(
    world: World, happen: Callable[[Link], object], connections: int
) -> None:
    world.ask({"open": "true"})
    happen(world.links[0])
    assert world.ask({"open": "true"})[0] == wire.READY
    assert len(world.links) == connections


def test_another_user_gets_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(wire, "peer_is_ours", lambda sock: False)
        with pytest.raises((wire.WireError, ConnectionError)):
            world.ask({"open": "true"})
    assert world.links == []


@pytest.mark.parametrize("text", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\1{", b"\0\0"])
def test_what_is_no_request_gets_no_answer_and_ends_nothing(world: World, text: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(world.path))
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = sock.recv(100)
        assert answer == b""
    assert world.ask({"status": True})[1]["commands"] == 0


def test_the_kernel_says_whose_the_other_end_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert wire.peer_is_ours(one)
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        assert not wire.peer_is_ours(one)
