"""What each request does on its host, in a process of its own: every one may be repeated."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import traceback
import zlib
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Iterable, Iterator, List, Mapping, Tuple

from .. import cleanup as cancel_run
from .. import processes, run_directory
from ..__main__ import begin, create
from ..artifacts import mask_run
from ..environments import EnvironmentStore
from ..files import LockTimeout, UnsafeName, file_lock, is_locked
from ..hang import look
from ..probe.evidence import collect_left_evidence
from ..processes import ask
from ..quick_dataclass import dataclass
from ..records import SlurmJob, Status
from ..run_directory import RunDir, machine_environment
from ..slurm import jobs as slurm
from ..trees.git import FULL_ERRORS, DiskFull, StoreError
from ..trees.workspace import NotKept, TreeStore, forget, prune
from . import protocol
from .protocol import Answer, Request, RunSummary

_LOCK_FILES = 16  # shared by all runs that there will ever be
_LOCK_SECONDS = 300.0  # a large tree on a slow disk takes a while


class BadRequest(Exception):
    """A request that cannot be done; `code` is for the client's code, the message for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# What their messages say is for a person.
_EXPECTED = (BadRequest, StoreError, slurm.CancelError, look.NoLook, NotKept, OSError)


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
            checkout = "" if plan.keeps_workspace else plan.checkout.path
            self.store.check_out(parts, plan.workspace, checkout)

    def cancel(self, request: Request) -> None:
        with self.locked_run(request.dir) as run:
            if not os.path.lexists(run.status) and os.path.exists(run.plan):
                now, log = time.time(), hashlib.sha256().hexdigest()
                never = Status("ended", "ended", 1, end="cancelled", started_at=now, log_sha256=log, masked=True)
                run_directory.write_record(run.status, replace(never, ended_at=now))
                return
        cancel_run.cancel(run.path, request.kill)

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
        left, batch = _remove(run), os.path.dirname(run)
        environments = os.path.join(batch, "environments")
        with suppress(OSError):  # the venvs that rows of a batch share, if none of its rows is left
            if request.shared and not any(name.isdigit() for name in os.listdir(batch)):
                for name in os.listdir(environments):
                    left += _remove(os.path.join(environments, name))
        while batch != os.path.join(self.home, "runs"):
            for path in (os.path.join(batch, "environments"), batch):
                with suppress(OSError):  # it is not empty
                    os.rmdir(path)
            batch = os.path.dirname(batch)
        return Answer(left=tuple(left))

    # -- questions, programs of ours, and what is old ------------------------------------------------------------------

    def look(self, request: Request) -> None:
        path = self.run_dir(request.dir)
        look.wait_for_look(path, request.look, self.is_disconnected)
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


def _remove(run: str) -> List[str]:
    left = cancel_run.remove_run(run)
    if not left:
        forget(RunDir(run).workspace)
    return left


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
    for directory, names, files in os.walk(top):
        # One that is half removed or half created may lack these files, but has its number.
        numbered = os.path.basename(directory).isdigit() and os.path.dirname(os.path.dirname(directory)) == top
        if numbered or "plan.json" in files or "run.sh" in files:
            names[:] = []
            yield directory
