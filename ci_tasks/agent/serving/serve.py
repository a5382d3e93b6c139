"""The host's side of a connection: requests on standard input; answers, logs and ends of runs on standard output.

One thread and one loop, in which nothing blocks. What takes long happens in a forked child, which outlives a connection
that breaks; a run's supervisor is one of them, so its code is in memory and was checked. Every request may be repeated.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional

from ..codec import RecordError, decode, parse
from ..slurm import job_file
from . import frames
from .messages import ClientMessage, Done, Hello, HostMessage, RequestError, Response, Submit, Watch
from .requests import HANDLERS, BadRequest, ServeSession
from .watch import LinkSpeed, WatchedRun, watched_run

SILENCE = 40.0  # seconds without a frame of the client, which sends heartbeats: then the connection is dead
HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 0.02  # between two looks at logs
BUSY_POLL_SECONDS = 0.002  # the same if a log has just grown: more of it is likely to come soon, or not at all
_BUSY_SHARE = 4  # looks within a time that is as long as that since a log grew
_IDLE_SECONDS = 1.0
FINISH_SECONDS = 180.0  # that what is queued for Slurm gets after its client has gone
_CHUNK = 1 << 18
_MAX_HELD = 1 << 22  # bytes of a pack that wait for the child that stores it
_MAX_CHILDREN = 32
_MAX_PIECES = 64  # for one writev


class _Pack:
    """The bytes that follow a request, on their way to the child that handles it."""

    def __init__(self) -> None:
        self.frames: Deque[Any] = deque()
        self.size = 0
        self.is_unwanted = False  # the request was answered before all of it had come

    def add(self, frame: bytes) -> None:
        if not self.is_unwanted:
            self.frames.append(memoryview(frame))
            self.size += len(frame)

    def write(self, pipe: int) -> None:
        """As much as the pipe takes now."""
        try:
            while self.frames:
                written = os.write(pipe, self.frames[0])
                self.size -= written
                self.frames[0] = self.frames[0][written:]
                if not self.frames[0]:
                    self.frames.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the child has died, which its answers tell
            self.drop()

    def drop(self) -> None:
        self.is_unwanted, self.size = True, 0
        self.frames.clear()


class _Child:
    """A forked process that handles one request. `holds_queue`: the requests that wait for each other wait for it."""

    def __init__(self, message: ClientMessage, holds_queue: bool, feed: Optional[int], pack: _Pack) -> None:
        self.message, self.holds_queue, self.feed, self.pack = message, holds_queue, feed, pack
        self.reader = frames.FrameReader()
        self.has_answered = False

    def end(self) -> None:
        """Its answer is there, or it has died."""
        self.has_answered, self.holds_queue = True, False
        self.pack.drop()
        if self.feed is not None:
            os.close(self.feed)
            self.feed = None


class Server:
    """Serves one client at a time. `archive` is agent.pyz, as it was checked, and `digest` its SHA-256."""

    def __init__(self, home: str, archive: bytes, digest: str) -> None:
        self.home, self.archive, self.digest, self.pid = home, archive, digest, os.getpid()
        self.reader = frames.FrameReader()
        self.session = self._session(lambda data: None, lambda: iter(()))
        self._is_loaded = False
        self._begin()
        self._greet()
        for fd in (0, 1):
            os.set_blocking(fd, False)
        # To be reaped. With SIGCHLD ignored, it is not known how squeue and sacct ended, which Slurm's threads run.
        self.forked: List[int] = []
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _session(self, send: Callable[[bytes], None], pack: Callable[[], Iterator[bytes]]) -> ServeSession:
        def is_disconnected() -> bool:
            return self.pid not in (os.getpid(), os.getppid())  # the server of this child has ended

        return ServeSession(self.home, self.archive, self.digest, send, pack, is_disconnected)

    def _begin(self) -> None:
        """A client begins."""
        self.out: Deque[Any] = deque()  # bytes on their way; logs are only read when they are gone
        self.watched: Dict[int, WatchedRun] = {}
        self.waiting: Deque[ClientMessage] = deque()  # requests that are worked off in their order
        self.others: Deque[ClientMessage] = deque()  # those for which there are too many children
        self.packs: Dict[int, _Pack] = {}  # by the number of the request
        self.incoming = _Pack()  # the one whose bytes come
        self.children: Dict[int, _Child] = {}  # by the pipe that their answers come through
        self.link = LinkSpeed()
        self.is_idle = False  # between two clients
        self.heard = self.said = self.grew = time.monotonic()

    def _greet(self) -> None:
        hello = Hello(self.home, (sys.executable, "%d.%d.%d" % sys.version_info[:3]), time.time(), self.digest)
        self.send(frames.MAGIC + frames.message(HostMessage(hello=hello)))

    def serve(self) -> None:
        """Until the client has gone."""
        while True:
            now = time.monotonic()
            self.forked = [pid for pid in self.forked if os.waitpid(pid, os.WNOHANG)[0] == 0]
            is_free = not self.out
            if is_free and not self.is_idle:
                self._fill(now)
            reads: List[int] = list(self.children) if is_free else []  # one piece of each, beside one of each log
            if sum(pack.size for pack in self.packs.values()) < _MAX_HELD:
                reads.append(0)
            else:
                self.heard = now
            feeds = {
                child.feed: child for child in self.children.values() if child.feed is not None and child.pack.size
            }
            ready, writable, _ = select.select(reads, [*feeds, *([1] if self.out else [])], [], self._pause(now))
            if not ready and not writable and not self._is_loaded:
                self._load()
            for pipe in ready:
                if pipe:
                    self._take_answer(pipe)
                elif not self._hear():
                    return
            for feed in writable:
                if feed in feeds and feeds[feed].feed == feed:
                    feeds[feed].pack.write(feed)
            if not self.is_idle and time.monotonic() - self.heard > SILENCE:
                return
            self._flush()

    def close(self) -> None:
        """Submit what is queued for Slurm."""
        self.session.finish(FINISH_SECONDS)

    def send(self, data: Any) -> None:
        self.out.append(memoryview(data))

    def _pause(self, now: float) -> float:
        if not self._is_loaded:
            return 0.0
        if not self.watched or self.out:
            return _IDLE_SECONDS
        return min(POLL_SECONDS, max(BUSY_POLL_SECONDS, (now - self.grew) / _BUSY_SHARE))

    def _load(self) -> None:
        """What a run's supervisor needs: it is forked from here."""
        import ctypes  # noqa: F401

        from .. import codec, records, supervisor  # noqa: F401

        codec.prepare(records.Plan, records.Status, records.Event, records.Environment)
        self._is_loaded = True

    def _fill(self, now: float) -> None:
        """Say what is new of the runs, or that we are there."""
        for watched in list(self.watched.values()):
            try:
                if watched.poll(self.send):
                    self.grew = now
            except (OSError, ValueError):  # a file that cannot be read just now; the next poll may
                continue
            if watched.over:
                del self.watched[watched.key]
        if not self.out and now - self.said > HEARTBEAT_SECONDS:
            self.send(frames.frame(frames.HEARTBEAT))

    def _flush(self) -> None:
        count = 0
        try:
            while self.out:
                left = os.writev(1, [self.out[at] for at in range(min(len(self.out), _MAX_PIECES))])
                self.said = time.monotonic()
                count += left
                while self.out and left >= len(self.out[0]):
                    left -= len(self.out.popleft())
                if left:
                    self.out[0] = self.out[0][left:]
        except BlockingIOError:
            pass
        except OSError:  # the client has gone
            self.out.clear()
        self.link.add(count, bool(self.out))

    def _hear(self) -> bool:
        """Whether the client is still there."""
        try:
            chunk = os.read(0, _CHUNK)
            self.heard = time.monotonic()
            if self.is_idle and chunk:
                self.is_idle = False
                self._greet()
            for kind, payload in self.reader.feed(chunk):
                if kind == frames.DATA:
                    self.incoming.add(frames.frame(kind, payload))
                elif kind == frames.GOODBYE:
                    self._forget(payload)
                elif kind == frames.JSON:
                    self._request(payload)
        except BlockingIOError:
            return True
        except frames.FrameError:
            return False
        return bool(chunk)

    def _forget(self, goodbye: bytes) -> None:
        """The client leaves; another one may follow."""
        for watched in self.watched.values():
            watched.close()
        for pipe, child in self.children.items():
            os.close(pipe)
            child.end()
        self._begin()
        self.is_idle = True
        self.send(frames.frame(frames.GOODBYE, goodbye))

    def _request(self, payload: bytes) -> None:
        self.incoming = _Pack()  # of this request, if bytes follow it
        data: Any = None
        try:
            data = parse(payload, where="request")
            message = decode(ClientMessage, data, where="request")
        except RecordError as error:
            number = data.get("id") if isinstance(data, dict) else None
            self._respond(Response(number if type(number) is int else 0, error=RequestError("unknown", str(error))))
            return
        handler = HANDLERS[type(message.request)]
        if handler.takes_pack:
            self.packs[message.id] = self.incoming
        else:
            self.incoming.drop()
        (self.waiting if handler.in_order else self.others).append(message)
        self._begin_requests()

    def _begin_requests(self) -> None:
        while self.others and len(self.children) < _MAX_CHILDREN:
            self._fork(self.others.popleft(), holds_queue=False)
        while self.waiting and not any(child.holds_queue for child in self.children.values()):
            message = self.waiting.popleft()
            if not self._handle_here(message):
                self._fork(message, holds_queue=True)

    def _handle_here(self, message: ClientMessage) -> bool:
        """What needs this process, and takes no time."""
        request = message.request
        if isinstance(request, Submit):
            self._respond(_response(self.session, message))
        elif isinstance(request, Watch) and os.path.lexists(os.path.join(request.dir, "status.json")):
            try:
                self._watch(request)
                self._respond(Response(message.id, Done()))
            except (BadRequest, OSError, ValueError) as error:
                self._respond(Response(message.id, error=RequestError(getattr(error, "code", "failed"), str(error))))
        else:
            return False
        return True

    def _watch(self, request: Watch) -> None:
        path = self.session.run_dir(request.dir)
        job = self.session.slurm.run_state(path) if job_file.read(path) is not None else None
        if request.key in self.watched:
            self.watched[request.key].close()
        self.watched[request.key] = watched_run(request.key, path, request.offset, self.link, job)

    def _respond(self, response: Response) -> None:
        self.send(frames.message(HostMessage(response=response)))

    # -- children ----------------------------------------------------------------------------------------------------

    def _fork(self, message: ClientMessage, holds_queue: bool) -> None:
        pack = self.packs.get(message.id)
        answers, theirs = os.pipe()
        source, feed = os.pipe() if pack is not None else (None, None)
        try:
            pid = os.fork()
        except OSError as error:
            pid = -1
            self._respond(Response(message.id, error=RequestError("failed", "no process: %s" % error.strerror)))
        if pid == 0:
            _become_child(theirs, source)
            self._work(message)
        for fd in (theirs, source, *(() if pid > 0 else (answers, feed))):
            if fd is not None:
                os.close(fd)
        if pid > 0:
            if feed is not None:
                os.set_blocking(feed, False)
            os.set_blocking(answers, False)
            self.forked.append(pid)
            self.children[answers] = _Child(message, holds_queue, feed, pack or _Pack())
        elif pack is not None:
            pack.drop()

    def _work(self, message: ClientMessage) -> None:
        """In the child; never returns. Its standard input is the pack, and its output leads to the server."""
        try:
            response = _response(self._session(_write, _pack_chunks), message)
            _write(frames.message(HostMessage(response=response)))
        finally:
            os._exit(0)

    def _take_answer(self, pipe: int) -> None:
        child = self.children.get(pipe)
        if child is None:  # of a client that has left just now
            return
        try:
            chunk = os.read(pipe, _CHUNK)
        except BlockingIOError:  # its number was that of one that is closed
            return
        for kind, payload in child.reader.feed(chunk):
            if kind == frames.JSON:
                child.end()
                if isinstance(child.message.request, Watch) and self._handle_here(child.message):
                    continue
            self.send(frames.frame(kind, payload))
        if not chunk:
            del self.children[pipe]
            self.packs.pop(child.message.id, None)
            os.close(pipe)
            if not child.has_answered:
                child.end()
                self._respond(Response(child.message.id, error=RequestError("failed", "its process died")))
        self._begin_requests()


def main(home: str, archive: bytes, digest: str) -> None:
    """Serve the client at standard input and output. Never returns."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # it may be the stream of the frames
    server = Server(home, archive, digest)
    server.serve()
    server.close()
    os._exit(0)


def _response(session: ServeSession, message: ClientMessage) -> Response:
    number = message.id
    try:
        return Response(number, HANDLERS[type(message.request)].handle(session, message.request, number))
    except BadRequest as error:
        return Response(number, error=RequestError(error.code, str(error)))
    except Exception as error:  # whatever it is, the client waits for a response
        why = str(error) if isinstance(error, OSError) else repr(error)
        return Response(number, error=RequestError("failed", why, traceback.format_exc()))


def _become_child(answers: int, source: Optional[int]) -> None:
    """Let go of the connection, which ends when the server does, and of all else that is the server's."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null if source is None else source, 0)
    os.dup2(answers, 1)
    os.dup2(null, 2)
    os.closerange(3, 1024)
    os.setsid()


def _write(data: Any) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


def _pack_chunks() -> Iterator[bytes]:
    reader = frames.FrameReader()
    while True:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            raise BadRequest("cut", "the connection ended in the middle of a pack")
        for _, payload in reader.feed(chunk):
            if not payload:
                return
            yield payload
