"""The host's side of a connection: requests on standard input; answers, logs and ends of runs on standard output.

One thread and one loop, in which nothing blocks. What takes long happens in a forked child, which outlives a connection
that breaks; a run's supervisor is one of them, so its code is in memory and was checked. Every request may be repeated.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import sys
import time
import traceback
import zlib
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from . import files, hang, processes, protocol, run_directory, slurm
from .__main__ import begin, create, detach
from .codec import RecordError, from_json, to_line
from .environments import EnvironmentStore
from .evidence import collect_left_evidence
from .files import LockTimeout, UnsafeName, file_lock, is_locked
from .finish import mask_run
from .git import FULL_ERRORS, DiskFull, StoreError
from .processes import ask
from .protocol import CHUNK, Answer, Hello, Request, RunSummary, RunUpdate
from .quick_dataclass import dataclass
from .records import Environment, Event, SlurmJob, Status
from .run_directory import RunDir, machine_environment, read_status
from .workspace import NotKept, TreeStore, prune

_LOCK_FILES = 16  # shared by all runs that there will ever be
_LOCK_SECONDS = 300.0  # a large tree on a slow disk takes a while


class BadRequest(Exception):
    """A request that cannot be done; `code` is for the client's code, the message for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# What their messages say is for a person.
_EXPECTED = (BadRequest, StoreError, slurm.CancelError, hang.NoLook, NotKept, OSError)


def respond(session: Session, request: Request) -> None:
    """Do what was asked, and answer whatever happens: the client waits for it. Standard input is the request's pack,
    standard output leads to the server, which knows its number."""
    try:
        answer = getattr(session, request.do)(request) or Answer()
    except _EXPECTED as error:
        answer = Answer(explained(error), getattr(error, "code", "failed"))
    except Exception as bug:
        answer = Answer(repr(bug), "failed", traceback.format_exc())
    os.write(1, protocol.message(protocol.ANSWER, 0, answer))
    if request.sbatch_script and not answer.code:
        slurm.submit(request.dir, again=False)


def explained(error: Exception) -> str:
    """The message for a person."""
    if isinstance(error, OSError) and error.errno in FULL_ERRORS:
        return str(DiskFull(error.strerror))
    return str(error)


@dataclass(frozen=True)
class Session:
    """A method for each request. `archive` is agent.pyz, as it was checked, and `digest` its SHA-256. `server` is the
    process that reads the requests and forks a process for each."""

    home: str
    archive: bytes
    digest: str
    server: int

    def is_disconnected(self) -> bool:
        """Whether the client has gone, and with it the server that this process was forked by."""
        return os.getppid() != self.server

    @property
    def store(self) -> TreeStore:
        return TreeStore(os.path.join(self.home, "store.git"))

    def run_dir(self, path: str) -> str:
        """The run directory that a request names. One below another home, which a client may remember, is refused, and
        one that a job has replaced by a link: what is done there would be done elsewhere."""
        runs = os.path.join(self.home, "runs") + os.sep
        if not path.startswith(runs) or os.path.normpath(path) != path:
            raise BadRequest("elsewhere", "%s is not below %s" % (path, runs))
        if os.path.realpath(path) != os.path.join(os.path.realpath(runs), path[len(runs) :]):
            raise BadRequest("link", "%s is, or is below, a symbolic link" % path)
        return path

    def _lock_file(self, run_dir: str) -> str:
        locks = os.path.join(self.home, "locks")
        os.makedirs(locks, exist_ok=True)
        return os.path.join(locks, "%d" % (zlib.crc32(os.fsencode(run_dir)) % _LOCK_FILES))

    def is_starting(self, run_dir: str) -> bool:
        """Whether a request of any connection creates or starts the run at this moment."""
        return is_locked(self._lock_file(run_dir), os.O_RDWR | os.O_CREAT) is True

    @contextmanager
    def locked_run(self, directory: str) -> Iterator[RunDir]:
        """No other request creates or starts the run meanwhile.

        A client that reconnects repeats its requests while those of the dead link may still be read here. None of these
        creates or starts a run once the client has disconnected."""
        path = self.run_dir(directory)
        try:
            with file_lock(self._lock_file(path), exclusive=True, timeout=_LOCK_SECONDS):
                if self.is_disconnected():
                    raise BadRequest("gone", "the client has disconnected")
                yield RunDir(path)
        except LockTimeout:
            raise BadRequest("busy", "another connection of this client is still starting the run") from None

    # -- making, starting and ending runs ------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        os.lseek(0, 0, os.SEEK_SET)
        self.store.receive(sys.stdin.buffer)

    def create(self, request: Request) -> None:
        with self.locked_run(request.dir) as run:
            if not os.path.exists(run.agent):
                self._check_out(request)
                create(run, replace(request.plan, script=request.script), self.archive)
            if not request.start or os.path.lexists(run.status):  # started before, or cancelled before that
                return
            if request.sbatch_script:
                job = SlurmJob(self.store.path, request.parts)
                slurm.prepare(run.path, job, request.sbatch_script, request.secrets)
                return
            problem = begin(run.path, request.secrets)
            if problem and not os.path.lexists(run.status):
                raise BadRequest("start", "the agent did not start: %s" % problem)

    def _check_out(self, request: Request) -> None:
        plan, parts = request.plan, request.parts
        if plan.retry is not None:
            for directory in (*plan.retry.directories, os.path.dirname(plan.workspace)):
                self.run_dir(directory)
            try:
                self.store.update(parts, plan.workspace, plan.retry, request.dir)
            except NotKept as reason:
                raise BadRequest("kept", "the run cannot be retried: %s; run its row again" % reason) from None
        elif parts:
            # What other runs use too goes with them; a run's own is another's afterwards.
            self.store.check_out(parts, plan.workspace, "" if plan.keeps_workspace else plan.checkout.path)

    def cancel(self, request: Request) -> None:
        with self.locked_run(request.dir) as run:
            if not os.path.lexists(run.status) and os.path.exists(run.plan):
                now, log = time.time(), hashlib.sha256().hexdigest()
                never = Status("ended", "ended", 1, end="cancelled", started_at=now, log_sha256=log, masked=True)
                run_directory.write_record(run.status, replace(never, ended_at=now))
                return
        slurm.cancel(run.path, request.kill)

    # -- what runs leave -----------------------------------------------------------------------------------------------

    def _send_files(self, files: Iterable[Tuple[bytes, bytes]]) -> None:
        for kind, payload in files:
            os.write(1, protocol.frame(kind, payload))

    def collect(self, request: Request) -> None:
        run = RunDir(self.run_dir(request.dir))
        try:
            self._mask(run, request.secrets)
            files = protocol.pack(run.path)
        except (OSError, ValueError) as error:
            files = protocol.pack(run.path, (), ["secrets could not be masked: %s" % error])
        self._send_files(files)

    def _mask(self, run: RunDir, values: Mapping[str, str]) -> None:
        """Mask secrets if the run's agent did not. Raises ValueError, OSError."""
        status = run_directory.read_status_if_readable(run)
        if status.masked:  # nothing may come to it any more
            return
        if status.has_ended:
            collect_left_evidence(run)
        names = status.secrets if status.exists else run_directory.read_plan(run).secrets
        missing = [name for name in names if name not in values]
        if missing:
            raise ValueError("its agent died first, and %s is not set here" % ", ".join(missing))
        if names:
            with self.locked_run(run.path):
                mask_run(run, [values[name] for name in names])

    def clear(self, request: Request) -> Answer:
        run = self.run_dir(request.dir)
        left, batch = slurm.remove_run(run), os.path.dirname(run)
        environments = os.path.join(batch, "environments")
        with suppress(OSError):  # the venvs that rows of a batch share, if none of its rows is left
            if request.shared and not any(name.isdigit() for name in os.listdir(batch)):
                for name in os.listdir(environments):
                    left += slurm.remove_run(os.path.join(environments, name))
        while batch != os.path.join(self.home, "runs"):
            for path in (os.path.join(batch, "environments"), batch):
                with suppress(OSError):  # it is not empty
                    os.rmdir(path)
            batch = os.path.dirname(batch)
        return Answer(left=tuple(left))

    # -- questions, programs of ours, and what is old ------------------------------------------------------------------

    def look(self, request: Request) -> None:
        path = self.run_dir(request.dir)
        hang.wait_for_look(path, request.look, self.is_disconnected)
        self._send_files(protocol.pack(path, run_directory.HANG_FILES))

    def describe(self, request: Request) -> Answer:
        return Answer(description=run_directory.read_description(RunDir(self.run_dir(request.dir))))

    def programs(self, request: Request) -> Answer:
        return Answer(outputs=ask(request.commands, request.seconds, machine_environment(request.env)))

    def runs(self, request: Request) -> Answer:
        return Answer(runs=tuple(list_runs(self.home)))

    def prune(self, request: Request) -> Answer:
        oldest = time.time() - request.days * 86400
        for entry in list(os.scandir(os.path.join(self.home, "agents"))):
            if entry.name != self.digest and entry.stat().st_mtime < oldest:
                os.unlink(entry.path)
        prune(os.path.join(self.home, "workspaces"), time.time() if request.all_environments else oldest)
        objects = "removed" if self.store.prune(request.days) else "another run uses them now"
        environments = EnvironmentStore(os.path.join(self.home, "environments"))
        cleaned = environments.clean(request.days, everything=request.all_environments)
        lines = (*(line for line, _ in cleaned), "old objects: " + objects)
        return Answer(lines=lines, left=tuple(left for _, found in cleaned for left in found))


def list_runs(home: str) -> List[RunSummary]:
    """Every run below `home`, with `alive` of Slurm jobs as squeue has it; while that fails, they count as alive."""
    runs = []
    for path in sorted(_run_dirs(os.path.join(home, "runs"))):
        run = RunDir(path)
        status = run_directory.read_status_if_readable(run)
        # An agent may stay after the end, to remove what its container daemon does not let go.
        is_alive, is_kept = processes.is_alive(run, status), status.kept is not None
        with suppress(UnsafeName):  # a directory that a job has made: no run is called so
            runs.append(RunSummary(path, status.state, is_alive, is_kept, status.started_at, status.ended_at))
    running = [run.dir for run in runs if run.state == "running"]
    jobs = {path: job.id for path in running for job in [slurm.read(path)] if job is not None and job.id}
    if not jobs:
        return runs
    alive = slurm.may_run(list(jobs.values()))
    return [replace(run, alive=alive[jobs[run.dir]] if run.dir in jobs else run.alive) for run in runs]


def _run_dirs(top: str) -> Iterator[str]:
    for directory, names, present in os.walk(top):
        # One that is half removed or half created may lack these files, but has its number.
        numbered = os.path.basename(directory).isdigit() and os.path.dirname(os.path.dirname(directory)) == top
        if numbered or "plan.json" in present or "run.sh" in present:
            names[:] = []
            yield directory


# -- the loop ----------------------------------------------------------------------------------------------------------

Join = Callable[[Status], Tuple[Status, bool]]  # what Slurm says is joined to an agent's status; whether it is final

IN_ORDER = ("receive", "create", "follow")  # each begins when the one before it is answered
SILENCE = 40.0  # seconds without a frame of the client, which sends heartbeats: then the connection is dead
HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 0.02  # between two looks at logs
BUSY_POLL_SECONDS = 0.002  # the same if a log has just grown: more of it is likely to come soon, or not at all
_BUSY_SHARE = 4  # looks within a time that is as long as that since a log grew
_IDLE_SECONDS = 1.0
_PACKED_FROM = 1 << 13  # bytes; what a job prints line by line is not worth the time
_ALIVE_POLL_SECONDS = 1.0  # between two reads of a status that seems to be the same
_SHARED_POLL_SECONDS = 0.5  # between two reads of the status of a run on another machine
_LOG_DELAY = 60.0  # seconds that the end of a log may come later than its status, on a file system that caches


class RunFollower:
    """A run as one client has it: its log from an offset, each new status, its end. `join` is of a Slurm job: such a
    run is on another machine, over a shared file system."""

    def __init__(self, server: Server, number: int, request: Request, join: Optional[Join] = None) -> None:
        self.is_over = False
        self._server, self._number, self._join = server, number, join
        self._run, self._offset = RunDir(request.dir), request.offset
        self._client = processes.client_lock(request.dir)
        self._log: Optional[BinaryIO] = None
        self._last = Status()  # the one that was sent
        self._mtime: Optional[int] = None
        self._next_look = self._opened = 0.0
        self._over_at: Optional[float] = None

    def poll(self) -> bool:
        """Send what is new. Returns whether the log grew."""
        # The status first: what the log has by the time an end is read is all that it will ever have.
        final = self._poll_status()
        grew = self._poll_log()
        if final is not None and not grew:
            self.is_over = True
            self.close()
            self._say(final)
        return grew

    def close(self) -> None:
        """The client follows it no more."""
        self._client.close()
        if self._log is not None:
            self._log.close()

    def _say(self, update: RunUpdate) -> None:
        self._server.send(protocol.message(protocol.UPDATE, self._number, update))

    def _poll_log(self) -> bool:
        if self._log is None:
            try:
                self._log, self._opened = files.open_file(self._run.log), time.monotonic()
            except OSError:
                return False
        chunk = os.pread(self._log.fileno(), protocol.MAX_UNPACKED, self._offset)
        if len(chunk) >= _PACKED_FROM:
            self._server.send(protocol.packed(chunk, self._number, self._offset))
        elif chunk:
            self._server.send(protocol.frame(protocol.DATA, chunk, self._number, self._offset))
        elif self._join and time.monotonic() - self._opened > _ALIVE_POLL_SECONDS:
            self._log.close()  # a file that another machine writes may grow unseen until it is opened again
            self._log = None
        self._offset += len(chunk)
        return bool(chunk)

    def _poll_status(self) -> Optional[RunUpdate]:
        """Send a new status. Returns the last update if the run is over."""
        now, mtime = time.monotonic(), 0
        with suppress(OSError):
            mtime = 0 if self._join else os.stat(self._run.status).st_mtime_ns
        # Two writes may share one mtime: it only hints that there is something to read.
        if mtime == self._mtime and now < self._next_look:
            return None
        self._mtime, self._next_look = mtime, now + (_SHARED_POLL_SECONDS if self._join else _ALIVE_POLL_SECONDS)
        try:
            status, is_over = self._join(read_status(self._run)) if self._join else self._look()
        except BadRequest as problem:
            return RunUpdate(over=True, code=problem.code, problem=str(problem))
        if is_over:
            self._next_look = 0.0  # it is read again, until the log is sent
            self._over_at = self._over_at or now
            has_all = not self._join or self._offset >= status.log_bytes or now - self._over_at > _LOG_DELAY
            return RunUpdate(status, over=True) if has_all else None
        if status != self._last:
            self._last = status
            self._say(RunUpdate(status))
        return None

    def _look(self) -> Tuple[Status, bool]:
        """The status of a run of this machine, and whether it is over. Raises BadRequest if the run is gone."""
        # Before the status is read: an agent writes the end, and then it ends itself. One that lives writes a status
        # again that its job took away.
        has_agent = processes.has_agent(self._run.path)
        # Another connection may start it just now.
        is_there = has_agent or os.path.lexists(self._run.status) or self._server.session.is_starting(self._run.path)
        if not is_there or os.path.islink(self._run.path):
            raise BadRequest("missing", "the host no longer has the run %s" % self._run.path)
        if not has_agent:
            status = processes.conclude(self._run)
            return status, status.has_ended
        status = read_status(self._run)
        if status.has_ended:  # its agent may write another one, and is about to end
            self._next_look = time.monotonic() + 5 * POLL_SECONDS
        return self._last if status.has_ended else status, False


class Server:
    """Serves one client at a time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.slurm: Optional[slurm.SlurmSession] = None
        # To be reaped. With SIGCHLD ignored, it is not known how squeue and sacct ended, which Slurm's thread runs.
        self.forked: List[int] = []
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._begin()
        self._greet()

    def _begin(self) -> None:
        """A client begins."""
        self.reader = protocol.FrameReader()
        self.out: Deque[Any] = deque()  # bytes on their way; logs are only read when they are gone
        self.followed: List[RunFollower] = []
        self.in_order: Deque[Tuple[int, Request]] = deque()
        # The files with the bytes that followed a request, by its number.
        self.packs: Dict[int, Tuple[Request, BinaryIO]] = {}
        # Forked processes that handle one request each, by the pipe that their answers come through.
        self.children: Dict[int, Tuple[protocol.FrameReader, int, Request]] = {}
        self.is_idle = False  # between two clients
        self.heard = self.said = self.grew = time.monotonic()

    def _greet(self) -> None:
        python = (sys.executable, "%d.%d.%d" % sys.version_info[:3])
        hello = Hello(self.session.home, python, self.session.digest)
        self.send(protocol.MAGIC + protocol.message(protocol.HELLO, 0, hello))
        self._flush()

    def serve(self) -> None:
        """Until the client has gone."""
        while self.is_idle or time.monotonic() - self.heard < SILENCE:
            self.forked = [pid for pid in self.forked if os.waitpid(pid, os.WNOHANG)[0] == 0]
            is_free = not self.out
            if is_free and not self.is_idle:
                self._say_news()
            # One piece of each child, beside one of each log; the client last, as it may leave.
            reads = [*(self.children if is_free else ()), 0]
            for pipe in select.select(reads, [1] if self.out else [], [], self._pause())[0]:
                if pipe:
                    self._take_answer(pipe)
                elif not self._hear():
                    return
            self._flush()

    def send(self, data: bytes) -> None:
        self.out.append(memoryview(data))

    def _refuse(self, number: int, code: str, error: object) -> None:
        self.send(protocol.message(protocol.ANSWER, number, Answer(str(error), code)))

    def _pause(self) -> float:
        if not self.followed or self.out:
            return _IDLE_SECONDS
        return min(POLL_SECONDS, max(BUSY_POLL_SECONDS, (time.monotonic() - self.grew) / _BUSY_SHARE))

    def _say_news(self) -> None:
        now = time.monotonic()
        for follower in self.followed:
            try:
                self.grew = now if follower.poll() else self.grew
            except (OSError, ValueError):  # a file that cannot be read just now; the next poll may
                continue
        self.followed = [follower for follower in self.followed if not follower.is_over]
        if not self.out and now - self.said > HEARTBEAT_SECONDS:
            self.send(protocol.frame(protocol.HEARTBEAT))

    def _flush(self) -> None:
        try:
            while self.out:
                written = os.write(1, self.out[0])
                self.said = time.monotonic()
                self.out[0] = self.out[0][written:]
                if not self.out[0]:
                    self.out.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the client has gone
            self.out.clear()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Whether the client is still there."""
        try:
            chunk = os.read(0, CHUNK)
            self.heard = time.monotonic()
            if self.is_idle and chunk:
                self.is_idle = False
                self._greet()
            for kind, number, _, payload in self.reader.feed(chunk):
                if kind == protocol.GOODBYE:
                    self._forget(payload)
                elif kind == protocol.REQUEST:
                    self._take_request(number, payload)
                elif kind == protocol.DATA and number in self.packs:
                    self._take_pack(number, payload)
        except BlockingIOError:
            return True
        except protocol.FrameError:
            return False
        return bool(chunk)

    def _forget(self, goodbye: bytes) -> None:
        """The client leaves; another one may follow."""
        for follower in self.followed:
            follower.close()
        for pipe in self.children:
            os.close(pipe)
        self._begin()
        self.is_idle = True
        self.send(protocol.frame(protocol.GOODBYE, goodbye))

    def _take_request(self, number: int, payload: bytes) -> None:
        try:
            request = from_json(Request, payload, where="request")
            if request.do == "receive":  # into a file without a name, on the disk that will hold the objects
                os.makedirs(self.session.home, 0o700, exist_ok=True)  # a person may remove it meanwhile
                path = os.path.join(self.session.home, "pack.%d" % os.getpid())
                self.packs[number] = request, open(path, "xb+", buffering=0)  # noqa: SIM115
                os.unlink(path)
            else:
                self._handle(number, request)
        except RecordError as error:
            self._refuse(number, "unknown", error)
        except OSError as error:
            self._refuse(number, "failed", explained(error))

    def _take_pack(self, number: int, chunk: bytes) -> None:
        request, pack = self.packs[number]
        try:
            pack.write(chunk)
        except OSError as error:
            self.packs.pop(number)  # the disk is free again, and the rest of it is ignored
            pack.close()
            self._refuse(number, "store", explained(error))
        else:
            if not chunk:
                self._handle(number, request)

    def _handle(self, number: int, request: Request) -> None:
        if request.do in IN_ORDER:
            self.in_order.append((number, request))
            self._handle_next()
        else:
            self._fork(number, request)

    def _handle_next(self) -> None:
        while self.in_order and not any(request.do in IN_ORDER for _, _, request in self.children.values()):
            number, request = self.in_order.popleft()
            if request.do == "follow":
                self._follow(number, request)
            else:
                self._fork(number, request)

    def _follow(self, number: int, request: Request) -> None:
        try:
            path = self.session.run_dir(request.dir)
            join: Optional[Join] = None
            if (job := slurm.read(path)) is not None:
                self.slurm = self.slurm or slurm.SlurmSession()
                join = partial(self.slurm.join, path)
                if not job.id:  # its submission died
                    self._in_child(partial(slurm.submit_left, path))
        except (BadRequest, OSError, ValueError) as error:
            update = RunUpdate(over=True, code=getattr(error, "code", "failed"), problem=str(error))
            self.send(protocol.message(protocol.UPDATE, number, update))
        else:
            self.followed.append(RunFollower(self, number, request, join))
            self.grew = time.monotonic()  # its first lines come soon

    # -- children ----------------------------------------------------------------------------------------------------

    def _fork(self, number: int, request: Request) -> None:
        answers, theirs = os.pipe()
        _, pack = self.packs.pop(number, (None, None))
        self._in_child(partial(respond, self.session, request), theirs, pack.fileno() if pack else None)
        os.close(theirs)
        self.children[answers] = protocol.FrameReader(), number, request

    def _in_child(self, work: Callable[[], None], output: Optional[int] = None, source: Optional[int] = None) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                detach(source, output)
                work()
            finally:
                os._exit(0)
        self.forked.append(pid)

    def _take_answer(self, pipe: int) -> None:
        reader, number, _ = self.children[pipe]
        chunk, is_answered = os.read(pipe, CHUNK), False
        for kind, _, offset, payload in reader.feed(chunk):
            self.send(protocol.frame(kind, payload, number, offset))
            is_answered = kind == protocol.ANSWER
        if not (chunk or is_answered):
            self._refuse(number, "failed", "its process died")
        if is_answered or not chunk:
            del self.children[pipe]
            os.close(pipe)
            self._handle_next()


def main(home: str, archive: bytes, digest: str) -> None:
    """Serve the client at standard input and output. Never returns."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it may be the stream of the frames
    server = Server(Session(home, archive, digest, os.getpid()))
    # While the client reads the greeting: a run's supervisor is forked from here, with all of it loaded.
    import ctypes  # noqa: F401

    from . import supervisor  # noqa: F401

    for record in (Status(), Event(0.0, ""), Environment()):
        to_line(record)
    server.serve()
    os._exit(0)
