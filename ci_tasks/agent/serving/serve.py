"""The host's side of a connection: requests on standard input; answers, logs and ends of runs on standard output.

One thread and one loop, in which nothing blocks. What takes long happens in a forked child, which outlives a connection
that breaks; a run's supervisor is one of them, so its code is in memory and was checked.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, Deque, Dict, Iterator, List, Optional, Set, Tuple

from ..codec import RecordError, decode, parse
from ..slurm import job_file
from . import frames
from .follow import LinkSpeed, RunFollower
from .messages import ClientMessage, Follow, FollowedRun, Hello, HostMessage, Response, RunUpdate, StartRun
from .requests import IN_ORDER, WITH_PACK, BadRequest, ServeSession, respond

SILENCE = 40.0  # seconds without a frame of the client, which sends heartbeats: then the connection is dead
HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 0.02  # between two looks at logs
BUSY_POLL_SECONDS = 0.002  # the same if a log has just grown: more of it is likely to come soon, or not at all
_BUSY_SHARE = 4  # looks within a time that is as long as that since a log grew
_IDLE_SECONDS = 1.0
FINISH_SECONDS = 180.0  # that what is queued for Slurm gets after its client has gone
_CHUNK = 1 << 18


class Server:
    """Serves one client at a time. `archive` is agent.pyz, as it was checked, and `digest` its SHA-256."""

    def __init__(self, home: str, archive: bytes, digest: str) -> None:
        server = os.getpid()
        self.session = ServeSession(
            home, archive, digest, is_disconnected=lambda: server not in (os.getpid(), os.getppid())
        )
        self.reader = frames.FrameReader()
        # To be reaped. With SIGCHLD ignored, it is not known how squeue and sacct ended, which Slurm's threads run.
        self.forked: List[int] = []
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._begin()
        self._greet()
        _load_supervisor()

    def _begin(self) -> None:
        """A client begins."""
        self.out: Deque[Any] = deque()  # bytes on their way; logs are only read when they are gone
        self.followed: Dict[int, RunFollower] = {}
        self.in_order: Deque[ClientMessage] = deque()
        self.incoming: Optional[ClientMessage] = None  # the request whose pack comes
        self.packs: Dict[int, Any] = {}  # files with the bytes that followed a request, by its number
        # Forked processes that handle one request each, by the pipe that their answers come through.
        self.children: Dict[int, Tuple[frames.FrameReader, ClientMessage]] = {}
        self.unanswered: Set[int] = set()  # numbers of their requests
        self.link = LinkSpeed()
        self.is_idle = False  # between two clients
        self.heard = self.said = self.grew = time.monotonic()

    def _greet(self) -> None:
        python = (sys.executable, "%d.%d.%d" % sys.version_info[:3])
        self.send(frames.MAGIC)
        self._say(hello=Hello(self.session.home, python, time.time(), self.session.digest))
        self._flush()

    def serve(self) -> None:
        """Until the client has gone."""
        while self.is_idle or time.monotonic() - self.heard < SILENCE:
            self.forked = [pid for pid in self.forked if os.waitpid(pid, os.WNOHANG)[0] == 0]
            is_free = not self.out
            if is_free and not self.is_idle:
                self._say_news()
            reads = [0, *(self.children if is_free else ())]  # one piece of each child, beside one of each log
            for pipe in select.select(reads, [1] if self.out else [], [], self._pause())[0]:
                if pipe:
                    self._take_answer(pipe)
                elif not self._hear():
                    return
            self._flush()

    def send(self, data: bytes) -> None:
        self.out.append(memoryview(data))

    def _say(self, **message: Any) -> None:
        self.send(frames.message(HostMessage(**message)))

    def _refuse(self, number: int, code: str, error: object) -> None:
        self._say(response=Response(number, error=str(error), code=code))

    def _pause(self) -> float:
        if not self.followed or self.out:
            return _IDLE_SECONDS
        return min(POLL_SECONDS, max(BUSY_POLL_SECONDS, (time.monotonic() - self.grew) / _BUSY_SHARE))

    def _say_news(self) -> None:
        now = time.monotonic()
        for follower in list(self.followed.values()):
            try:
                self.grew = now if follower.poll() else self.grew
            except (OSError, ValueError):  # a file that cannot be read just now; the next poll may
                continue
            if follower.over:
                del self.followed[follower.key]
        if not self.out and now - self.said > HEARTBEAT_SECONDS:
            self.send(frames.frame(frames.HEARTBEAT))

    def _flush(self) -> None:
        count = 0
        try:
            while self.out:
                written = os.write(1, self.out[0])
                self.said, count = time.monotonic(), count + written
                self.out[0] = self.out[0][written:]
                if not self.out[0]:
                    self.out.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the client has gone
            self.out.clear()
        self.link.add(count, bool(self.out))

    # -- requests ----------------------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Whether the client is still there."""
        try:
            chunk = os.read(0, _CHUNK)
            self.heard = time.monotonic()
            if self.is_idle and chunk:
                self.is_idle = False
                self._greet()
            for kind, payload in self.reader.feed(chunk):
                if kind == frames.GOODBYE:
                    self._forget(payload)
                elif kind == frames.JSON:
                    self._take_request(payload)
                elif kind == frames.DATA and self.incoming is not None:
                    self._take_pack(self.incoming, payload)
        except BlockingIOError:
            return True
        except frames.FrameError:
            return False
        return bool(chunk)

    def _forget(self, goodbye: bytes) -> None:
        """The client leaves; another one may follow."""
        for follower in self.followed.values():
            follower.close()
        for pipe in self.children:
            os.close(pipe)
        self._begin()
        self.is_idle = True
        self.send(frames.frame(frames.GOODBYE, goodbye))

    def _take_request(self, payload: bytes) -> None:
        data: Any = None
        try:
            data = parse(payload, where="request")
            message = decode(ClientMessage, data, where="request")
        except RecordError as error:
            number = data.get("id") if isinstance(data, dict) else None
            self._refuse(number if type(number) is int else 0, "unknown", error)
            return
        if isinstance(message.request, WITH_PACK):
            self.incoming = message
        else:
            self._handle(message)

    def _take_pack(self, message: ClientMessage, chunk: bytes) -> None:
        """Into a file without a name, on the disk that will hold the objects."""
        try:
            if message.id not in self.packs:
                path = os.path.join(self.session.home, "pack.%d" % os.getpid())
                self.packs[message.id] = open(path, "xb+", buffering=0)  # noqa: SIM115
                os.unlink(path)
            self.packs[message.id].write(chunk)
        except OSError as error:
            self.incoming = None  # the rest of it is ignored
            self._refuse(message.id, "store", error)
        else:
            if not chunk:
                self.incoming = None
                self._handle(message)

    def _handle(self, message: ClientMessage) -> None:
        if isinstance(message.request, IN_ORDER):
            self.in_order.append(message)
            self._handle_next()
        else:
            self._fork(message)

    def _handle_next(self) -> None:
        while self.in_order and not any(isinstance(each.request, IN_ORDER) for _, each in self.children.values()):
            message = self.in_order.popleft()
            if isinstance(message.request, Follow):
                for followed in message.request.runs:
                    self._follow(followed)
                self._say(response=Response(message.id))
            elif isinstance(message.request, StartRun) and message.request.sbatch_script:
                self._say(response=respond(self.session, message))  # the queue is this process's
            else:
                self._fork(message)

    def _follow(self, followed: FollowedRun) -> None:
        """A run that is followed already, as by a client whose last request got lost, is followed from there."""
        if followed.key in self.followed:
            self.followed.pop(followed.key).close()
        try:
            path = self.session.run_dir(followed.dir)
            job = self.session.slurm.run_state(path) if job_file.read(path) is not None else None
        except (BadRequest, OSError, ValueError) as error:
            code = getattr(error, "code", "failed")
            self._say(update=RunUpdate(followed.key, over=True, code=code, problem=str(error)))
        else:
            is_starting = partial(self.session.is_starting, path)
            self.followed[followed.key] = RunFollower(followed, self.send, self.link, job, is_starting)

    # -- children ----------------------------------------------------------------------------------------------------

    def _fork(self, message: ClientMessage) -> None:
        answers, theirs = os.pipe()
        pack = self.packs.pop(message.id, None)
        pid = os.fork()
        if pid == 0:
            try:
                _become_child(theirs, pack.fileno() if pack else os.open(os.devnull, os.O_RDONLY))
                self._work(message)
            finally:
                os._exit(0)
        os.close(theirs)
        os.set_blocking(answers, False)
        self.forked.append(pid)
        self.children[answers] = frames.FrameReader(), message
        self.unanswered.add(message.id)

    def _work(self, message: ClientMessage) -> None:
        """In the child. Its standard input is the pack, and its output leads to the server."""

        def send(chunk: bytes) -> None:
            os.write(1, frames.part(message.id, chunk))

        session = replace(self.session, send=send, pack=_input, slurms=[])
        os.write(1, frames.message(HostMessage(response=respond(session, message))))

    def _take_answer(self, pipe: int) -> None:
        if pipe not in self.children:  # of a client that has left just now
            return
        try:
            chunk = os.read(pipe, _CHUNK)
        except BlockingIOError:  # its number was that of one that is closed
            return
        reader, message = self.children[pipe]
        for kind, payload in reader.feed(chunk):
            self.send(frames.frame(kind, payload))
            if kind == frames.JSON:
                self.unanswered.discard(message.id)
        if not chunk:
            del self.children[pipe]
            os.close(pipe)
            if message.id in self.unanswered:
                self._refuse(message.id, "failed", "its process died")
            self._handle_next()


def main(home: str, archive: bytes, digest: str) -> None:
    """Serve the client at standard input and output. Never returns."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # it may be the stream of the frames
    server = Server(home, archive, digest)
    server.serve()
    if server.session.slurms:  # submit what is queued
        server.session.slurm.finish(time.monotonic() + FINISH_SECONDS)
    os._exit(0)


def _load_supervisor() -> None:
    """A run's supervisor is forked from here; all of it is loaded while the client reads the greeting."""
    import ctypes  # noqa: F401

    from .. import codec, records, supervisor  # noqa: F401

    codec.prepare(records.Plan, records.Status, records.Event, records.Environment)


def _become_child(answers: int, source: int) -> None:
    """Let go of the connection, which ends when the server does, and of all else that is the server's."""
    for fd, number in ((source, 0), (answers, 1), (os.open(os.devnull, os.O_WRONLY), 2)):
        os.dup2(fd, number)
    os.closerange(3, 1024)
    os.setsid()


def _input() -> Iterator[bytes]:
    os.lseek(0, 0, os.SEEK_SET)
    yield from iter(lambda: os.read(0, _CHUNK), b"")
