"""The host's side of a connection: requests on standard input; answers, logs and ends of runs on standard output.

One thread and one loop, in which nothing blocks. What takes long happens in a forked child, which outlives a connection
that breaks; a run's supervisor is one of them, so its code is in memory and was checked."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from .. import files, liveness, run_directory
from ..codec import RecordError, decode, parse
from ..records import SlurmJob, Status
from ..slurm import job_file
from . import frames
from .messages import ClientMessage, Follow, FollowedRun, Hello, HostMessage, Receive, Response, RunUpdate, StartRun
from .requests import IN_ORDER, BadRequest, ServeSession, explained, respond

if TYPE_CHECKING:
    from ..slurm.session import SlurmSession

Join = Callable[[Status], Tuple[Status, bool]]  # what Slurm says is joined to an agent's status; whether it is final

SILENCE = 40.0  # seconds without a frame of the client, which sends heartbeats: then the connection is dead
HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 0.02  # between two looks at logs
BUSY_POLL_SECONDS = 0.002  # the same if a log has just grown: more of it is likely to come soon, or not at all
_BUSY_SHARE = 4  # looks within a time that is as long as that since a log grew
_IDLE_SECONDS = 1.0
_CHUNK = 1 << 18
_PACKED_FROM = 1 << 13  # bytes; what a job prints line by line is not worth the time
_SAMPLE = 1 << 21  # bytes, more than a pipe holds before its writer has to wait
_SLOW = 30e6  # bytes a second: by far less than zlib packs, and than a loop or a fast network takes
_ALIVE_POLL_SECONDS = 1.0  # between two reads of a status that seems to be the same
_SHARED_POLL_SECONDS = 0.5  # between two reads of the status of a run on another machine
_LOG_DELAY = 60.0  # seconds that the end of a log may come later than its status, on a file system that caches


class LinkSpeed:
    """Whether the link is slow, so that logs arrive sooner if they are packed."""

    def __init__(self) -> None:
        self.is_slow, self._bytes, self._seconds = False, 0, 0.0
        self._blocked_since: Optional[float] = None

    def add(self, count: int, is_blocked: bool) -> None:
        """So many bytes were written just now; `is_blocked`: the link takes no more at the moment."""
        now = time.monotonic()
        self._bytes += count
        self._seconds += now - self._blocked_since if self._blocked_since is not None else 0.0
        self._blocked_since = now if is_blocked else None
        if self._bytes >= _SAMPLE:
            self.is_slow = self._bytes < _SLOW * self._seconds
            self._bytes, self._seconds = 0, 0.0


class RunFollower:
    """A run as one client has it. `join` is of a Slurm job: such a run is on another machine, over a shared file
    system. `is_starting` tells of a run without a status whether another connection starts it just now."""

    def __init__(
        self,
        followed: FollowedRun,
        send: Callable[[bytes], None],
        link: LinkSpeed,
        join: Optional[Join] = None,
        is_starting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.key, self.over = followed.key, False
        self._run, self._offset = run_directory.RunDir(followed.dir), followed.offset
        self._send, self._link, self._join, self._is_starting = send, link, join, is_starting
        self._client = liveness.client_lock(followed.dir)
        self._log: Optional[BinaryIO] = None
        self._mtime: Optional[int] = None
        self._last: Any = None  # the status that was sent last
        self._last_check = self._opened = 0.0
        self._over_at: Optional[float] = None

    def poll(self) -> bool:
        """Send what is new. Returns whether the log grew."""
        # The status first: what the log has by the time an end is read is all that it will ever have.
        final = self._poll_job(self._join) if self._join else self._poll_status()
        grew = self._poll_log()
        if final is not None and not grew:
            self.over = True
            self.close()
            self._say(final)
        return grew

    def close(self) -> None:
        """The client follows it no more."""
        self._client.close()
        self._close_log()

    def _say(self, update: RunUpdate) -> None:
        self._send(frames.message(HostMessage(update=update)))

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _poll_log(self) -> bool:
        if self._log is None:
            try:
                self._log, self._opened = files.open_file(self._run.log), time.monotonic()
            except OSError:
                return False
        chunk = os.pread(self._log.fileno(), frames.MAX_UNPACKED, self._offset)
        if chunk:
            is_packed = len(chunk) >= _PACKED_FROM and self._link.is_slow
            self._send((frames.packed_log if is_packed else frames.log)(self.key, self._offset, chunk))
            self._offset += len(chunk)
        elif self._join and time.monotonic() - self._opened > _ALIVE_POLL_SECONDS:
            self._close_log()  # a file that another machine writes may grow unseen until it is opened again
        return bool(chunk)

    def _poll_status(self) -> Optional[RunUpdate]:
        """Send a new status. Returns the last update if the run is over."""
        now = time.monotonic()
        try:
            mtime = os.stat(self._run.status).st_mtime_ns
        except OSError:
            mtime = 0
        # Two writes may share one mtime: it only hints that there is something to read.
        if mtime == self._mtime and now - self._last_check < _ALIVE_POLL_SECONDS:
            return None
        self._mtime, self._last_check = mtime, now
        # Before the status is read: an agent writes the end, and then it ends itself. One that lives writes a status
        # again that its job took away.
        has_agent = liveness.is_held(self._run.path)
        is_there = mtime or has_agent or self._is_starting() or os.path.lexists(self._run.status)
        if not is_there or os.path.islink(self._run.path):
            why = "there is no run %s on the host any more" % self._run.path
            return RunUpdate(self.key, over=True, code="missing", problem=why)
        status = run_directory.read_status(self._run) if has_agent else liveness.conclude(self._run)
        if status.has_ended:
            self._mtime = None  # it is read again, until the log is sent, or the agent has written it again
            return None if has_agent else RunUpdate(self.key, status, over=True, gone=status.gone)
        if status.exists and status.sequence != self._last:
            self._last = status.sequence
            self._say(RunUpdate(self.key, status))
        return None

    def _poll_job(self, join: Join) -> Optional[RunUpdate]:
        now = time.monotonic()
        if now - self._last_check < _SHARED_POLL_SECONDS:
            return None
        self._last_check = now
        status, over = join(run_directory.read_status(self._run))
        if over:
            self._over_at = self._over_at or now
            if self._offset >= status.log_bytes or now - self._over_at > _LOG_DELAY:
                self._last_check = 0.0  # it is read again, until the log is sent
                return RunUpdate(self.key, status, over=True, gone=status.gone)
        elif status != self._last:
            self._last = status
            self._say(RunUpdate(self.key, status))
        return None


class Server:
    """Serves one client at a time. `archive` is agent.pyz, as it was checked, and `digest` its SHA-256."""

    def __init__(self, home: str, archive: bytes, digest: str) -> None:
        self.session = ServeSession(home, archive, digest, server=os.getpid())
        self.slurm: Optional[SlurmSession] = None
        # To be reaped. With SIGCHLD ignored, it is not known how squeue and sacct ended, which Slurm's thread runs.
        self.forked: List[int] = []
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._begin()
        self._greet()
        _load_supervisor()

    def _begin(self) -> None:
        """A client begins."""
        self.reader, self.link = frames.FrameReader(), LinkSpeed()
        self.out: Deque[Any] = deque()  # bytes on their way; logs are only read when they are gone
        self.followed: Dict[int, RunFollower] = {}
        self.in_order: Deque[ClientMessage] = deque()
        self.incoming: Optional[ClientMessage] = None  # the request whose pack comes
        self.packs: Dict[int, Any] = {}  # files with the bytes that followed a request, by its number
        # Forked processes that handle one request each, by the pipe that their answers come through.
        self.children: Dict[int, Tuple[frames.FrameReader, ClientMessage]] = {}
        self.is_idle = False  # between two clients
        self.heard = self.said = self.grew = time.monotonic()

    def _greet(self) -> None:
        python = (sys.executable, "%d.%d.%d" % sys.version_info[:3])
        self.send(frames.MAGIC)
        self._say(hello=Hello(self.session.home, python, self.session.digest))
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
        if isinstance(message.request, Receive):
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
            if message.id in self.packs:
                self.packs.pop(message.id).close()  # the disk is free again
            self._refuse(message.id, "store", explained(error))
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
            else:
                self._fork(message)

    def _follow(self, followed: FollowedRun) -> None:
        """A run that is followed already, as by a client whose last request got lost, is followed from there."""
        if followed.key in self.followed:
            self.followed.pop(followed.key).close()
        try:
            path = self.session.run_dir(followed.dir)
            job = job_file.read(path)
            join = self._join_slurm(path, job) if job is not None else None
        except (BadRequest, OSError, ValueError) as error:
            code = getattr(error, "code", "failed")
            self._say(update=RunUpdate(followed.key, over=True, code=code, problem=str(error)))
        else:
            is_starting = partial(self.session.is_starting, path)
            self.followed[followed.key] = RunFollower(followed, self.send, self.link, join, is_starting)

    def _join_slurm(self, run_dir: str, job: SlurmJob) -> Join:
        """A host without Slurm does not load it. A run that is not submitted, as its submission died, is submitted."""
        from ..slurm import session

        self.slurm = self.slurm or session.SlurmSession()
        if not job.id:
            self._in_child(partial(session.submit_left, run_dir))
        return partial(self.slurm.join, run_dir)

    # -- children ----------------------------------------------------------------------------------------------------

    def _fork(self, message: ClientMessage) -> None:
        answers, theirs = os.pipe()
        pack = self.packs.pop(message.id, None)
        self._in_child(partial(self._work, message), theirs, pack.fileno() if pack else None)
        os.close(theirs)
        os.set_blocking(answers, False)
        self.children[answers] = frames.FrameReader(), message

    def _in_child(self, work: Callable[[], None], output: Optional[int] = None, source: Optional[int] = None) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                _become_child(output, source)
                work()
            finally:
                os._exit(0)
        self.forked.append(pid)

    def _work(self, message: ClientMessage) -> None:
        """In the child. Its standard input is the pack, and its output leads to the server."""

        def send(chunk: bytes) -> None:
            os.write(1, frames.part(message.id, chunk))

        session = replace(self.session, send=send, pack=_input)
        response = respond(session, message)
        os.write(1, frames.message(HostMessage(response=response)))
        if isinstance(message.request, StartRun) and message.request.sbatch_script and not response.code:
            from ..slurm.session import submit

            submit(message.request.dir, again=False)

    def _take_answer(self, pipe: int) -> None:
        if pipe not in self.children:  # of a client that has left just now
            return
        try:
            chunk = os.read(pipe, _CHUNK)
        except BlockingIOError:  # its number was that of one that is closed
            return
        reader, message = self.children[pipe]
        is_answered = False
        for kind, payload in reader.feed(chunk):
            self.send(frames.frame(kind, payload))
            is_answered = kind == frames.JSON
        if not (chunk or is_answered):
            self._refuse(message.id, "failed", "its process died")
        if is_answered or not chunk:
            del self.children[pipe]
            os.close(pipe)
            self._handle_next()


def main(home: str, archive: bytes, digest: str) -> None:
    """Serve the client at standard input and output. Never returns."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # it may be the stream of the frames
    Server(home, archive, digest).serve()
    os._exit(0)


def _load_supervisor() -> None:
    """A run's supervisor is forked from here; all of it is loaded while the client reads the greeting."""
    import ctypes  # noqa: F401

    from .. import codec, records, supervisor  # noqa: F401

    codec.prepare(records.Plan, records.Status, records.Event, records.Environment)


def _become_child(output: Optional[int], source: Optional[int]) -> None:
    """Let go of the connection, which ends when the server does, and of all else that is the server's."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd, number in ((source, 0), (output, 1), (None, 2)):
        os.dup2(null if fd is None else fd, number)
    os.closerange(3, 1024)
    os.setsid()


def _input() -> Iterator[bytes]:
    os.lseek(0, 0, os.SEEK_SET)
    yield from iter(lambda: os.read(0, _CHUNK), b"")
