"""The handler of each request."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zlib
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping

from .. import create_run_directory, run_directory
from ..__main__ import begin
from ..cleanup import cancel as cancel_run
from ..cleanup.remove_run import remove_run
from ..environments.store import EnvironmentStore
from ..exit_gate import mask_run
from ..file_lock import LockTimeout, file_lock
from ..hang import look, programs
from ..job_environment import machine_environment
from ..probe.evidence import collect_left_evidence
from ..programs import ask
from ..quick_dataclass import dataclass
from ..records import End, SlurmJob, State, Status
from ..setup_copy import make_copy, restore_copy
from ..setup_manifest import WORKSPACE, SetupChanged, check_setup, forget
from ..slurm import job_file
from ..trees import idle
from ..trees.git import SHA1, SHA256, MissingBase, StoreError, form_of
from ..trees.store import TreeStore
from ..trees.workspace import NotKept
from . import bundle, frames, list_runs, messages
from .messages import Cleared, DescribedRun, Done, ProgramOutputs, Pruned, Result, RunList

_LOCK_FILES = 16  # shared by all runs that there will ever be
_LOCK_SECONDS = 300.0  # a large tree on a slow disk takes a while


class BadRequest(Exception):
    """A request that cannot be done; `code` is for the client's code, the message for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class ServeSession:
    """What a handler knows of its connection. `archive` is agent.pyz, and `digest` its SHA-256."""

    home: str
    archive: bytes
    digest: str
    send: Callable[[bytes], None]
    pack_chunks: Callable[[], Iterator[bytes]]
    is_disconnected: Callable[[], bool]
    slurms: List[Any] = field(default_factory=list)

    @property
    def slurm(self) -> Any:
        """The SlurmSession: a host without Slurm does not load it."""
        if not self.slurms:
            from ..slurm.session import SlurmSession

            self.slurms.append(SlurmSession())
        return self.slurms[0]

    def finish(self, seconds: float) -> None:
        """The client has disconnected: submit what is queued for Slurm, if that is possible in time."""
        if self.slurms:
            self.slurm.finish(time.monotonic() + seconds)

    def store(self, form: str = SHA1) -> TreeStore:
        """A store has object ids of one form."""
        return TreeStore(os.path.join(self.home, "store.git" if form == SHA1 else "store-%s.git" % form), form)

    def run_dir(self, path: str) -> str:
        """The run directory that a request names. One below another home, which a client may remember, is refused, and
        one that a job has replaced by a link: what is done there would be done elsewhere."""
        runs = os.path.join(self.home, "runs") + os.sep
        if not path.startswith(runs) or os.path.normpath(path) != path:
            raise BadRequest("elsewhere", "%s is not below %s" % (path, runs))
        if os.path.realpath(path) != os.path.join(os.path.realpath(runs), path[len(runs) :]):
            raise BadRequest("link", "%s is, or is below, a symbolic link" % path)
        return path

    @contextmanager
    def locked_run(self, path: str) -> Iterator[run_directory.RunDir]:
        """Nobody else creates or starts the run meanwhile.

        A client that reconnects repeats its requests while those of the dead link may still be read here. None of these
        creates or starts a run once the client has disconnected."""
        directory = os.path.join(self.home, "locks")
        os.makedirs(directory, exist_ok=True)
        lock = os.path.join(directory, "%d" % (zlib.crc32(os.fsencode(path)) % _LOCK_FILES))
        try:
            with file_lock(lock, exclusive=True, timeout=_LOCK_SECONDS):
                if self.is_disconnected():
                    raise BadRequest("gone", "the client has disconnected")
                yield run_directory.RunDir(path)
        except LockTimeout:
            raise BadRequest("busy", "another connection of this client is still starting the run") from None


def receive(session: ServeSession, request: messages.Receive, number: int) -> Done:
    with _store_errors():
        session.store(request.form).receive(session.pack_chunks())
    return Done()


def create(session: ServeSession, request: messages.Create, number: int) -> Done:
    path = session.run_dir(request.dir)
    with session.locked_run(path) as run:
        if os.path.exists(run.plan):
            return Done()
        if request.plan.retry is not None:
            _continue_workspace(session, request)
        elif request.parts:
            shutil.rmtree(request.plan.workspace, ignore_errors=True)
            with _store_errors():
                # What other runs use too goes with them; a run's own is another's afterwards.
                plan = request.plan
                store = session.store(form_of(request.parts[0].tree))
                store.check_out(request.parts, plan.workspace, "" if plan.keeps_workspace else plan.checkout.path)
        plan = replace(request.plan, script=request.script)
        create_run_directory.write_run_dir(run, plan, session.archive)
    return Done()


def _continue_workspace(session: ServeSession, request: messages.Create) -> None:
    plan, parts = request.plan, request.parts
    assert plan.retry is not None
    for directory in (*plan.retry.directories, os.path.dirname(plan.workspace)):
        session.run_dir(directory)
    try:
        with _store_errors():
            session.store(form_of(parts[0].tree)).update(parts, plan.workspace, plan.retry, request.dir)
    except NotKept as reason:
        raise BadRequest("kept", "the run cannot be retried: %s; run its row anew" % reason) from None
    if plan.setup:  # its manifest is of the files before
        forget(session.run_dir(plan.setup), WORKSPACE)


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise BadRequest("missing-base" if isinstance(error, MissingBase) else "store", str(error)) from None


def start(session: ServeSession, request: messages.StartRun, number: int) -> Done:
    with session.locked_run(session.run_dir(request.dir)) as run:
        if os.path.lexists(run.status):
            return Done()
        _check_created(run)
        _check_setup(run)
        problem = begin(run.path, request.secrets)
        if problem and not os.path.lexists(run.status):
            raise BadRequest("start", "the agent did not start: %s" % problem)
    return Done()


def submit(session: ServeSession, request: messages.Submit, number: int) -> Done:
    with session.locked_run(session.run_dir(request.dir)) as run:
        _check_created(run)
        if run_directory.read_status_if_readable(run).has_ended:  # cancelled before it was submitted
            return Done()
        _check_setup(run)
        parts = request.parts
        store = session.store(form_of(parts[0].tree) if parts else SHA1).path
        job = SlurmJob(home=session.home, store=store, parts=parts)
        session.slurm.submit(run.path, job, request.script, request.secrets)
    return Done()


def _check_created(run: run_directory.RunDir) -> None:
    if not os.path.exists(run.plan):
        raise BadRequest("missing", "there is no run %s" % run.path)


def _check_setup(run: run_directory.RunDir) -> None:
    setup = run_directory.read_plan(run).setup
    if setup:
        try:
            check_setup(setup)
        except SetupChanged as error:
            raise BadRequest("setup", str(error)) from None


def watch(session: ServeSession, request: messages.Watch, number: int) -> Done:
    """Whether it can be watched; the server does so."""
    path = session.run_dir(request.dir)
    with session.locked_run(path) as run:  # it may be starting at this moment
        if not os.path.lexists(run.status):
            raise BadRequest("missing", "there is no run %s on the host any more" % path)
    return Done()


def cancel(session: ServeSession, request: messages.Cancel, number: int) -> Done:
    path = session.run_dir(request.dir)
    with session.locked_run(path) as run:
        if not os.path.lexists(run.status) and os.path.exists(run.plan):
            run_directory.write_record(run.status, _never_began())
            return Done()
    try:
        (cancel_run.kill if request.kill else cancel_run.cancel)(path)
    except cancel_run.CancelError as error:
        raise BadRequest("cancel", str(error)) from None
    return Done()


def _never_began() -> Status:
    now, log = time.time(), hashlib.sha256().hexdigest()
    end: End = run_directory.END_CANCELLED
    state: State = run_directory.STATE_ENDED
    return Status(state, "ended", 1, end=end, started_at=now, ended_at=now, log_sha256=log, masked=True)


def collect(session: ServeSession, request: messages.Collect, number: int) -> Done:
    path = session.run_dir(request.dir)

    def write(chunk: bytes) -> None:
        session.send(frames.part(number, chunk))

    try:
        unknown = _mask(session, path, request.secrets)
    except (OSError, ValueError) as error:
        bundle.send_reason("secrets could not be masked: %s" % error, write)
        return Done()
    if unknown:
        why = "the agent died before it could mask %s, which is not set here" % ", ".join(unknown)
        bundle.send_reason(why, write)
    else:
        bundle.send(path, write)
    return Done()


def _mask(session: ServeSession, path: str, values: Mapping[str, str]) -> List[str]:
    """Mask secrets where the run's agent did not. Returns the names of those whose values are not known."""
    run = run_directory.RunDir(path)
    status = run_directory.read_status_if_readable(run)
    if status.has_ended:
        collect_left_evidence(run, list(values.values()))
    if status.masked:
        return []
    names = status.secrets if status.exists else run_directory.read_plan(run).secrets
    unknown = [name for name in names if name not in values]
    if names and not unknown:
        with session.locked_run(path):
            old = mask_run(run, [values[name] for name in names])
            if old:
                shutil.rmtree(old)
    return unknown


def copy_setup(session: ServeSession, request: messages.CopySetup, number: int) -> Done:
    with session.locked_run(session.run_dir(request.dir)) as run:
        try:
            (restore_copy if request.restore else make_copy)(run.path)
        except (SetupChanged, OSError) as error:
            raise BadRequest("setup", str(error)) from None
    return Done()


def store_program(session: ServeSession, request: messages.StoreProgram, number: int) -> Done:
    try:
        programs.store_program(session.home, request.prefix, request.sha256, session.pack_chunks())
    except (OSError, ValueError) as error:
        raise BadRequest("store", str(error)) from None
    return Done()


def look_at_processes(session: ServeSession, request: messages.LookAtProcesses, number: int) -> Done:
    path = session.run_dir(request.dir)
    try:
        look.wait_for_look(path, request.request, session.is_disconnected)
    except look.NoLook as error:
        raise BadRequest("look", str(error)) from None
    bundle.send_files(path, run_directory.HANG_FILES, lambda chunk: session.send(frames.part(number, chunk)))
    return Done()


def clear(session: ServeSession, request: messages.Clear, number: int) -> Cleared:
    run = session.run_dir(request.dir)
    left = _remove(session, run)
    directory = os.path.dirname(run)
    if request.shared:
        left += _clear_environments(session, directory)
    while directory != os.path.join(session.home, "runs"):
        for name in (os.path.join(directory, "environments"), directory):
            with suppress(OSError):  # it is not empty
                os.rmdir(name)
        directory = os.path.dirname(directory)
    return Cleared(tuple(left))


def _clear_environments(session: ServeSession, batch: str) -> List[str]:
    """Remove the venvs that rows of a batch share, if none of its rows is left."""
    environments = os.path.join(batch, "environments")
    try:
        shared = [] if any(name.isdigit() for name in os.listdir(batch)) else os.listdir(environments)
    except OSError:
        return []
    return [line for name in shared for line in _remove(session, os.path.join(environments, name))]


def _remove(session: ServeSession, run: str) -> List[str]:
    if job_file.read(run) is not None:
        from ..slurm.cancel import end_before_removal

        end_before_removal(run)
    left = remove_run(run)
    if not left:
        idle.forget(run_directory.RunDir(run).workspace)
    return left


def describe_run(session: ServeSession, request: messages.DescribeRun, number: int) -> DescribedRun:
    return DescribedRun(run_directory.read_description(run_directory.RunDir(session.run_dir(request.dir))))


def run_programs(session: ServeSession, request: messages.RunPrograms, number: int) -> ProgramOutputs:
    return ProgramOutputs(ask(request.commands, request.timeout, machine_environment(request.env)))


def runs(session: ServeSession, request: messages.ListRuns, number: int) -> RunList:
    return RunList(tuple(list_runs.runs(session.home)))


def prune(session: ServeSession, request: messages.Prune, number: int) -> Pruned:
    oldest = time.time() - request.days * 86400
    for entry in list(os.scandir(os.path.join(session.home, "agents"))):
        if entry.name != session.digest and entry.stat().st_mtime < oldest:
            os.unlink(entry.path)
    programs.remove_old_programs(session.home, oldest)
    idle.prune(os.path.join(session.home, "workspaces"), time.time() if request.all_environments else oldest)
    done = session.store().prune(request.days) and session.store(SHA256).prune(request.days)
    environments = EnvironmentStore(os.path.join(session.home, "environments"))
    lines = list(environments.clean(request.days, everything=request.all_environments))
    return Pruned(done, tuple(line for line, _ in lines), tuple(left for _, found in lines for left in found))


@dataclass
class RequestHandler:
    """`in_order`: it waits for those before it. `takes_pack`: bytes follow it."""

    handle: Callable[[ServeSession, Any, int], Result]
    in_order: bool = False
    takes_pack: bool = False


HANDLERS: Dict[type, RequestHandler] = {
    messages.Receive: RequestHandler(receive, in_order=True, takes_pack=True),
    messages.Create: RequestHandler(create, in_order=True),
    messages.StartRun: RequestHandler(start, in_order=True),
    messages.Submit: RequestHandler(submit, in_order=True),
    messages.Watch: RequestHandler(watch, in_order=True),
    messages.StoreProgram: RequestHandler(store_program, in_order=True, takes_pack=True),
    messages.Cancel: RequestHandler(cancel),
    messages.Collect: RequestHandler(collect),
    messages.CopySetup: RequestHandler(copy_setup),
    messages.Clear: RequestHandler(clear),
    messages.LookAtProcesses: RequestHandler(look_at_processes),
    messages.RunPrograms: RequestHandler(run_programs),
    messages.DescribeRun: RequestHandler(describe_run),
    messages.ListRuns: RequestHandler(runs),
    messages.Prune: RequestHandler(prune),
}
