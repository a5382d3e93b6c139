"""A host that speaks our protocol and lies: a Link in memory whose answers a case changes.

`HostileServer` answers as an honest host with one ended run would. A case replaces parts of it, or the bytes. The
client's requests are answered while it sends them, so that a conversation takes no time.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.agent.codec import decode, encode, parse
from ci_tasks.agent.records import QueryAnswer, RunDescription, Status
from ci_tasks.agent.serving import frames, messages
from ci_tasks.agent.serving.messages import ClientMessage, Hello, RunSummary
from ci_tasks.errors import Blocked
from ci_tasks.executors.link import LinkDied
from ci_tasks.executors.remote import bootstrap

HOME = "/home/box/.ci-tasks"
READ_TIMEOUT = 0.5  # of a reader whose other end says nothing, and asks nothing
Frames = Iterator[bytes]


def bundle_of(files: dict[str, bytes]) -> bytes:
    """The bytes of a bundle."""
    entries = [({"path": path, "size": len(content)}, content) for path, content in files.items()]
    return b"".join(bundle_entry(head, content) for head, content in entries) + struct.pack(">H", 0)


def bundle_entry(head: Any, content: bytes) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">H", len(text) & 0xFFFF) + text + content


def pieces(data: bytes, size: int = 1 << 18) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@dataclass
class HostileServer:
    """What the host has, and how it says so. `answers` replace those to the requests named, `change` every frame."""

    batch: str
    log: bytes = b"step 0: {'x': 1}\n"
    files: dict[str, bytes] = field(default_factory=dict)
    hello: Any = None  # of the record, or bytes that stand for all of the greeting
    summaries: Any = None
    description: Any = None
    statuses: list[Any] | None = None
    log_frames: Callable[[int], Frames] | None = None
    bundle: Callable[[], Iterator[bytes]] | None = None
    programs: Callable[[tuple[str, ...]], QueryAnswer] = lambda argv: QueryAnswer(0)
    answers: dict[str, Callable[[ClientMessage], Frames]] = field(default_factory=dict)
    change: Callable[[int, bytes], Iterator[bytes]] = lambda number, frame: iter([frame])
    end: str = ""  # `eof`, `dead` or `silent`, when it has said all that it says
    end_after: int = 0  # requests
    asked: int = 0

    @property
    def directory(self) -> str:
        return f"{HOME}/runs/{self.batch}/01"

    # -- what it says ------------------------------------------------------------------------------------------------

    def greeting(self) -> Frames:
        if isinstance(self.hello, bytes):
            yield self.hello
            return
        yield frames.MAGIC
        hello = encode(Hello(HOME, ("/usr/bin/python3", "3.11.2")), versioned=False)
        yield from self._message({"hello": self.hello if self.hello is not None else hello})

    def respond(self, message: ClientMessage) -> Frames:
        kind = type(message.request).__name__
        answer = self.answers.get(kind) or getattr(self, f"_{kind.lower()}", None)
        yield from answer(message) if answer else self.done(message)

    def done(self, message: ClientMessage) -> Frames:
        yield from self.result(message, {"kind": "done"})

    def result(self, message: ClientMessage, result: Any) -> Frames:
        yield from self._message({"response": {"id": message.id, "result": result}})

    def error(self, message: ClientMessage, code: Any, text: Any) -> Frames:
        yield from self._message({"response": {"id": message.id, "error": {"code": code, "message": text}}})

    def _message(self, value: Any) -> Frames:
        yield frames.frame(frames.JSON, json.dumps(value).encode())

    def update(self, key: int, status: Any, **more: Any) -> Frames:
        yield from self._message({"update": {"key": key, "status": status, **more}})

    def _listruns(self, message: ClientMessage) -> Frames:
        listed = [encode(RunSummary(self.directory, "ended", ended_at=1.0), versioned=False)]
        runs = self.summaries if self.summaries is not None else listed
        yield from self.result(message, {"kind": "runs", "runs": runs})

    def _describerun(self, message: ClientMessage) -> Frames:
        honest = encode(RunDescription(f"{self.batch}.01", "ckpt", "e2e-test-ckpt", "ckpt[async]"), versioned=False)
        described = self.description if self.description is not None else honest
        yield from self.result(message, {"kind": "description", "description": described})

    def _watch(self, message: ClientMessage) -> Frames:
        assert isinstance(message.request, messages.Watch)
        key, offset = message.request.key, message.request.offset
        yield from self.done(message)
        statuses = self.honest_statuses() if self.statuses is None else self.statuses
        for status in statuses[:-1]:
            yield from self.update(key, status)
        if self.log_frames is not None:
            yield from self.log_frames(key)
        elif offset < len(self.log):
            yield frames.log(key, offset, self.log[offset:])
        if statuses:
            yield from self.update(key, statuses[-1], over=True)

    def honest_statuses(self) -> list[dict[str, Any]]:
        running = Status("running", "running", started_at=1000.0, pid=7, pid_start="1", boot_id="b")
        ended = {"state": "ended", "phase": "ended", "end": "exit", "exit_code": 0, "ended_at": 1060.0}
        log = {"log_bytes": len(self.log), "log_sha256": hashlib.sha256(self.log).hexdigest()}
        first = encode(running, versioned=False)
        return [first, {**first, **ended, **log}]

    def _collect(self, message: ClientMessage) -> Frames:
        for chunk in self.bundle() if self.bundle is not None else pieces(bundle_of(self.files)):
            yield frames.part(message.id, chunk)
        yield from self.done(message)

    def _clear(self, message: ClientMessage) -> Frames:
        yield from self.result(message, {"kind": "cleared"})

    def _prune(self, message: ClientMessage) -> Frames:
        yield from self.result(message, {"kind": "pruned", "done": True})

    def _runprograms(self, message: ClientMessage) -> Frames:
        assert isinstance(message.request, messages.RunPrograms)
        outputs = {
            name: encode(self.programs(argv), versioned=False) for name, argv in message.request.commands.items()
        }
        yield from self.result(message, {"kind": "programs", "outputs": outputs})


class HostileLink:
    """A connection to the server."""

    def __init__(self, server: HostileServer) -> None:
        self.description, self._server = "box", server
        self.alive = True

    def open(self, command: str) -> HostileStream:
        return HostileStream(self._server)

    def interactive(self, command: str) -> int:
        raise AssertionError("no terminal is needed here")

    def close(self) -> None:
        self.alive = False


class HostileStream:
    """What the server says is made when it is read, so that one that never ends takes no memory of the test."""

    def __init__(self, server: HostileServer) -> None:
        self._server = server
        self._speech: deque[Frames] = deque([server.greeting()])
        self._change = threading.Condition()
        self._reader = frames.FrameReader()
        self._archive: int | None = None  # bytes of the agent that are still to come
        self._number = 0
        self._rest = b""
        self._closed = False
        self._head = b""

    def send(self, data: bytes) -> None:
        with self._change:
            if self._closed:
                raise LinkDied("the link is closed")
            for kind, payload in self._reader.feed(self._after_agent(data)):
                if kind == frames.JSON:
                    request = decode(ClientMessage, parse(payload, where="request"), where="request")
                    self._server.asked += 1
                    self._speech.append(self._server.respond(request))
            self._change.notify_all()

    def _after_agent(self, data: bytes) -> bytes:
        if self._archive is None:
            self._head += data
            _, start, rest = self._head.partition(bootstrap.START)
            if not start or len(rest) < 12:
                return b""
            self._archive, data = int(rest[:12]), rest[12:]
        taken = min(self._archive, len(data))
        self._archive -= taken
        return data[taken:]

    def recv(self, n: int) -> bytes:
        deadline = time.monotonic() + READ_TIMEOUT
        with self._change:
            while True:
                if self._closed:
                    return b""
                if self._rest:
                    taken, self._rest = self._rest[:n], self._rest[n:]
                    return taken
                if self._speech:
                    self._next()
                elif self._server.asked >= self._server.end_after and self._server.end:
                    return self._end()
                elif not self._change.wait(deadline - time.monotonic()):
                    raise TimeoutError

    def _end(self) -> bytes:
        if self._server.end == "dead":
            raise LinkDied("box: the link is dead")
        if self._server.end == "silent":
            raise TimeoutError
        return b""

    def _next(self) -> None:
        piece = next(self._speech[0], None)
        if piece is None:
            self._speech.popleft()
            return
        self._rest = b"".join(self._server.change(self._number, piece))
        self._number += 1

    def settimeout(self, seconds: float | None) -> None:
        pass

    def stderr_tail(self) -> bytes:
        return b""

    def shut_write(self) -> None:
        pass

    def exit_status(self) -> int | None:
        return None

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()


def connect_to(server: HostileServer, times: int) -> Callable[[str], HostileLink]:
    """In the place of ci_tasks.executors.ssh.connection.connect, so many times; then the host is gone."""
    links: list[HostileLink] = []

    def connect(address: str) -> HostileLink:
        if len(links) == times:
            raise Blocked(f"{address} is gone")
        links.append(HostileLink(server))
        return links[-1]

    return connect
