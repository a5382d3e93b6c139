"""A host that speaks our protocol and lies: a Transport in memory whose answers a case changes.

`HostileServer` answers as an honest host with one ended run would. A case replaces parts of it, or the bytes. The
client's requests are answered while it sends them, so that a conversation takes no time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ci_tasks.agent import protocol
from ci_tasks.agent.codec import encode, from_json
from ci_tasks.agent.protocol import Hello, Request, RunSummary
from ci_tasks.agent.records import QueryAnswer, RunDescription, Status
from ci_tasks.errors import Blocked
from ci_tasks.hosts import transport

HOME = "/home/box/.ci-tasks"
Frames = Iterator[bytes]
_plain = partial(encode, versioned=False)


def pieces(data: bytes, size: int = 1 << 18) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def message(kind: bytes, number: int, value: Any) -> bytes:
    return protocol.frame(kind, json.dumps(value).encode(), number)


@dataclass
class HostileServer:
    """What the host has, and how it says so. `says` has the values of its messages (bytes for `hello` stand for all of
    the greeting), `answers` replace those to the requests named, `change` every frame."""

    batch: str
    log: bytes = b"step 0: {'x': 1}\n"
    files: dict[str, bytes] = field(default_factory=dict)
    says: dict[str, Any] = field(init=False)
    log_frames: Callable[[int], Frames] | None = None
    program: Callable[[], QueryAnswer] = lambda: QueryAnswer(0)
    answers: dict[str, Callable[[int, Request], Frames]] = field(default_factory=dict)
    change: Callable[[int, bytes], Iterator[bytes]] = lambda number, frame: iter([frame])
    end: str = ""  # `eof`, `dead` or `silent`, when it has said all that it says
    end_after: int = 0  # requests
    asked: int = 0

    def __post_init__(self) -> None:
        run = Status("running", "running", started_at=1000.0, pid=7, pid_start="1", boot_id="b")
        ended = replace(run, state="ended", phase="ended", end="exit", exit_code=0, ended_at=1060.0)
        ended = replace(ended, log_bytes=len(self.log), log_sha256=hashlib.sha256(self.log).hexdigest())
        self.says = {
            "hello": _plain(Hello(HOME, ("/usr/bin/python3", "3.11.2"))),
            "runs": [_plain(RunSummary(self.directory, "ended", ended_at=1.0))],
            "description": _plain(RunDescription(f"{self.batch}.01", "ckpt", "e2e-test-ckpt", "ckpt[async]")),
            "statuses": [_plain(run), _plain(ended)],
        }

    @property
    def directory(self) -> str:
        return f"{HOME}/runs/{self.batch}/01"

    # -- what it says ------------------------------------------------------------------------------------------------

    def greeting(self) -> Frames:
        hello = self.says["hello"]
        yield hello if isinstance(hello, bytes) else protocol.MAGIC + message(protocol.HELLO, 0, hello)

    def respond(self, number: int, request: Request) -> Frames:
        answer = self.answers.get(request.do) or getattr(self, f"_{request.do}", None)
        yield from answer(number, request) if answer else self.answer(number)

    def answer(self, number: int, **values: Any) -> Frames:
        yield message(protocol.ANSWER, number, values)

    def update(self, number: int, status: Any, **more: Any) -> Frames:
        yield message(protocol.UPDATE, number, {"status": status, **more})

    def _runs(self, number: int, request: Request) -> Frames:
        yield from self.answer(number, runs=self.says["runs"])

    def _describe(self, number: int, request: Request) -> Frames:
        yield from self.answer(number, description=self.says["description"])

    def _follow(self, number: int, request: Request) -> Frames:
        *before, last = self.says["statuses"]
        for status in before:
            yield from self.update(number, status)
        if self.log_frames is not None:
            yield from self.log_frames(number)
        elif request.offset < len(self.log):
            yield protocol.frame(protocol.DATA, self.log[request.offset :], number, request.offset)
        yield from self.update(number, last, over=True)

    def _collect(self, number: int, request: Request) -> Frames:
        for path, content in self.files.items():
            yield protocol.frame(protocol.FILE, path.encode(), number)
            yield from (protocol.frame(protocol.DATA, chunk, number) for chunk in pieces(content))
        yield from self.answer(number)

    def _programs(self, number: int, request: Request) -> Frames:
        outputs = {name: _plain(self.program()) for name in request.commands}
        yield from self.answer(number, outputs=outputs)


class HostileTransport:
    """A Transport whose commands are conversations with the server, so many of them; then the host is gone."""

    is_server_running, python = False, "python3"

    def __init__(self, server: HostileServer, times: int, name: str) -> None:
        self._server, self._times, self._name = server, times, name
        self._conversations: list[HostileConversation] = []

    def open(self, command: str) -> socket.socket:
        if len(self._conversations) == self._times:
            raise Blocked(f"{self._name} is gone")
        ours, theirs = socket.socketpair()
        self._conversations.append(HostileConversation(self._server, theirs))
        return ours

    def close(self) -> None:
        for conversation in self._conversations:
            conversation.close()


class HostileConversation:
    """What the server says is made when it is sent, so that one that never ends takes no memory of the test."""

    def __init__(self, server: HostileServer, sock: socket.socket) -> None:
        self._server, self._sock = server, sock
        self._speech: deque[Frames] = deque([server.greeting()])
        self._change = threading.Condition()
        self._reader = protocol.FrameReader()
        self._archive: int | None = None  # bytes of the agent that are still to come
        self._head = b""
        self._is_over = False
        self._talking = threading.Thread(target=self._talk, daemon=True)
        self._talking.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        with self._change:
            self._is_over = True
            self._change.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._sock.recv(1 << 18):
                for kind, number, _, payload in self._reader.feed(self._after_agent(data)):
                    if kind == protocol.REQUEST:
                        request = from_json(Request, payload, where="request")
                        with self._change:
                            self._server.asked += 1
                            self._speech.append(self._server.respond(number, request))
                            self._change.notify_all()
        self.close()
        self._talking.join()
        self._sock.close()

    def _after_agent(self, data: bytes) -> bytes:
        if self._archive is None:
            self._head += data
            _, start, rest = self._head.partition(transport.START)
            if not start or len(rest) < 12:
                return b""
            self._archive, data = int(rest[:12]), rest[12:]
        taken = min(self._archive, len(data))
        self._archive -= taken
        return data[taken:]

    def _talk(self) -> None:
        number = 0
        while (speech := self._next_speech()) is not None:
            with contextlib.suppress(OSError):
                for piece in speech:
                    for changed in self._server.change(number, piece):
                        self._sock.sendall(changed)
                    number += 1
        if self._server.end != "silent":
            self.close()

    def _next_speech(self) -> Frames | None:
        with self._change:
            while not self._speech:
                if self._is_over or (self._server.end and self._server.asked >= self._server.end_after):
                    return None
                self._change.wait()
            return self._speech.popleft()
