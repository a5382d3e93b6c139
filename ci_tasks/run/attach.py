"""`attach`, `fetch`, `cancel` and `logs --follow`: coming back to runs, wherever they are.

A run of this machine is read in place. The files of a run on another host are fetched first: their mirror continues at
its end. Several people may watch one run, and several processes here: one of them writes the mirror. With `--host`,
runs that another client started are known here too from then on.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field, replace

from ci_tasks import registry
from ci_tasks.agent import processes, slurm
from ci_tasks.agent.protocol import Request, RunSummary
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import RemoteLocation
from ci_tasks.agent.run_directory import RunDir, read_description, read_plan, read_remote, read_status, write_record
from ci_tasks.agent.slurm import CancelError
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import Blocked, UnknownName, UsageError
from ci_tasks.hosts.connection import ReconnectingConnection
from ci_tasks.hosts.runs import RemoteRun, RemoteRunManager, RunState, lock_mirror, open_connection, write_location
from ci_tasks.records import CANCELLED, LOST, PLANNED, RUNNING, BatchResult, LocatedRun, RunRecord
from ci_tasks.report.live import WAITING, RowProgress
from ci_tasks.report.results import batch_result
from ci_tasks.results import store
from ci_tasks.results.load import find_one, load_record
from ci_tasks.results.runs import is_over, pending_phase, record_not_started, seconds_since_start
from ci_tasks.results.store import read_state_if_readable
from ci_tasks.run.events import EventStream, EventView, RunEnded, now
from ci_tasks.run.progress import GrowingLog, open_view, print_results, running_row_progress

_POLL_SECONDS = 0.1
_COMMAND_SECONDS = 60.0  # that a command which was asked to end gets
_MAX_LISTED = 10
_CLIENT = re.compile(r"-[0-9a-f]{6}$")  # the end of a batch's directory on a host: see store.client_id
FoundRun = tuple[str, RunDir]  # id and directory


def attach(name: str, config: Config, host: str | None, events: EventStream | None = None) -> BatchResult:
    """Follow runs to their end and fetch their files."""
    found = _wait_for_rows(name, config, host)
    if all(load_record(run).status == PLANNED for _, run in found):
        raise UsageError(f"{name} was only planned", hint=f"`bash {found[0][1].script}` runs a row by hand")
    rows = {id: read_description(run).row for id, run in found}
    names = {id: f"{row} ({id})" if [*rows.values()].count(row) > 1 else row for id, row in rows.items()}
    shown = EventView(open_view(name, [run for _, run in found]), events)
    if phases := {phase for _, run in found if (phase := pending_phase(run))}:
        shown.print_message(f"not all rows have begun: their command is {' or '.join(sorted(phases))}")
    with attached(found) as runs, closing(shown) as view:
        try:
            say = view.print_message
            watch(runs, lambda: view.update([replace(run.progress(), row=names[run.id]) for run in runs]), say=say)
        except KeyboardInterrupt:
            follows = f"`ci-tasks attach {name}` follows them, `ci-tasks cancel {name}` ends them"
            view.print_message(f"the runs continue; {follows}")
            raise
        records = [run.record() for run in runs]
    batches = dict.fromkeys(store.batch_of(id) for id, _ in found)
    directories = {record.id: run.path for record, (_, run) in zip(records, found, strict=True)}
    result = print_results(batch_result(", ".join(batches), records, directories))
    hooks = registry.hooks("run_summary")
    codes = [hook(record, run.path) for record, (_, run) in zip(records, found, strict=True) for hook in hooks]
    if known := [code for code in codes if code is not None]:  # of what features print of a run that has ended
        result = replace(result, exit_code=next(filter(None, known), 0))
    if events:
        events.write(RunEnded(now(), result.id, result.status, result.exit_code or 0))
    return result


def fetch(name: str, config: Config, host: str | None) -> list[LocatedRun]:
    """Fetch runs: all files of a run that has ended, the log so far of the others."""
    fetched = []
    with attached(find_runs(name, config, host)) as runs:
        watch(runs, is_done=lambda run: run.poll().is_over or run.is_caught_up())
        for run in runs:
            status = run.record().status if run.poll().is_over else RUNNING
            print(f"{run.id}: {'not over yet, its log so far' if status == RUNNING else status}: {run.run.path}")
            fetched.append(LocatedRun(run.id, status, run.run.path))
    return fetched


def follow_log(id: str, run: RunDir, log: GrowingLog) -> None:
    """Copy the run's log as it grows, until the run has ended."""
    with attached([(id, run)]) as runs:
        watch(runs, log.copy)
        log.copy()
        runs[0].record()  # a command that fetches a run also records how it ended


def _wait_for_rows(name: str, config: Config, host: str | None) -> list[FoundRun]:
    """What `find_runs` returns; of a command that is being prepared, as soon as its rows are known."""
    while True:
        try:
            return find_runs(name, config, host)
        except store.BatchHasNoRows as unprepared:
            if not unprepared.state.is_active:
                raise
            name = unprepared.batch
        time.sleep(_POLL_SECONDS)


# -- runs that exist ---------------------------------------------------------------------------------------------------


@dataclass
class AttachedRun:
    """A run that was attached to. `remote_run` is ours to fetch; without one the run is here, or another process
    fetches it: it becomes ours, by its host's manager, as soon as that process has ended."""

    id: str
    run: RunDir
    managers: dict[str, RemoteRunManager] = field(default_factory=dict)
    remote_run: RemoteRun | None = None

    def poll(self) -> RunState:
        if self.remote_run is None:
            self._claim()
        if self.remote_run is not None:
            return self.remote_run.state
        phase = pending_phase(self.run)
        return RunState(is_complete=is_over(self.run), note="its command starts it later" if phase else "")

    def record(self) -> RunRecord:
        state = self.poll()
        return record_not_started(self.run, *state.aborted) if state.aborted else load_record(self.run)

    def progress(self) -> RowProgress:
        state, described = self.poll(), read_description(self.run)
        if state.is_over:
            record = load_record(self.run)
            status = state.aborted[0] if state.aborted else record.status
            return RowProgress(described.row, status, record.timings.seconds, host=described.host)
        seconds = seconds_since_start(self.run)
        if seconds is None:
            return RowProgress(described.row, WAITING, None, state.note, described.host)
        return running_row_progress(described.row, self.run, seconds, state.note, host=described.host)

    def is_caught_up(self) -> bool:
        """Whether the run continues, and its log here is the host's of a moment ago."""
        mirror = self.remote_run.mirror if self.remote_run else None
        if mirror is None:  # it runs here, or has not begun, or another command fetches it
            return True
        has_ended = mirror.ended.is_set() or mirror.status.has_ended or mirror.status.gone
        return mirror.has_status and not has_ended and mirror.offset >= mirror.status.log_bytes

    def cancel(self) -> None:
        remote = read_remote(self.run)
        if remote is None:
            with suppress(CancelError):
                slurm.cancel(self.run.path)
        elif self.remote_run is not None:
            self.managers[remote.host].end(self.remote_run, "cancel")
        else:  # another command here fetches it
            with closing(open_connection(host_of_run(remote))) as connection:
                connection.request(Request("cancel", remote.directory))

    def _claim(self) -> None:
        remote = read_remote(self.run)
        held = None if remote is None or remote.complete else lock_mirror(self.run)
        if held is None:
            return
        remote = read_remote(self.run)
        if remote is None or remote.complete:  # by now
            held.close()
            return
        if remote.host not in self.managers:
            self.managers[remote.host] = RemoteRunManager(open_connection(host_of_run(remote)))
        # Secrets of our own plans only: another could name any variable of ours.
        secrets = {name: os.environ[name] for name in read_plan(self.run).secrets if name in os.environ}
        adopted = remote.adopted
        self.remote_run = RemoteRun(self.run, remote.directory, lock=held, keep_remote=adopted, secrets=secrets)
        self.managers[remote.host].attach(self.remote_run)


@contextmanager
def attached(found: Sequence[FoundRun]) -> Iterator[list[AttachedRun]]:
    """Runs that grow here, with the connections to their hosts. Runs that no process fetches yet are ours."""
    managers: dict[str, RemoteRunManager] = {}
    try:
        yield [AttachedRun(id, run, managers) for id, run in found]
    finally:
        for manager in managers.values():
            manager.detach()
            manager.close()


def watch(
    runs: Sequence[AttachedRun],
    show: Callable[[], object] = lambda: None,
    *,
    is_done: Callable[[AttachedRun], bool] = lambda run: run.poll().is_over,
    say: Callable[[str], object] = lambda line: print(line, flush=True),
) -> None:
    """Show runs until all are done."""
    while True:
        done = [is_done(run) for run in runs]
        for manager in runs[0].managers.values() if runs else ():
            for line in manager.connection.drain_messages():
                say(line)
        show()
        if all(done):
            return
        time.sleep(_POLL_SECONDS)


def host_of_run(remote: RemoteLocation) -> HostSpec:
    """The run's host, by its name at that time: hosts.yaml may have changed since."""
    return HostSpec(remote.host, remote.kind, remote.address, workspace=remote.workspace, persist=remote.persist)


def find_runs(name: str, config: Config, host: str | None) -> list[FoundRun]:
    """The runs that `name` means: those kept here; with `host` those on it, each with a directory here from now on.
    What a host says of such a run is kept as claims: it is shown and judged. What the directory here is called, what
    may be removed here and where the run is follows from what this client knows itself. Raises UnknownName, UsageError,
    Blocked."""
    if not host:
        return store.find(name)
    spec = config.host(host)
    if spec.kind == "local":
        raise UsageError(f"host {spec.name} is this machine", hint="leave out --host: its runs are known here")
    with closing(open_connection(spec)) as connection:
        listed = list({run.dir: run for run in connection.request(Request("runs")).runs if run.is_row}.values())
        adopted = [(run.id, _adopt(run, spec, connection)) for run in listed if _is_called(run, name)]
    if not adopted:
        newest = sorted({run.id for run in listed}, reverse=True)[:_MAX_LISTED]
        raise UnknownName("run", name, newest, where=f"host {spec.name}")
    return adopted


def _is_called(run: RunSummary, name: str) -> bool:
    """The person who started it knows it without the end of its batch's name."""
    return any(f"{id}.".startswith(f"{name}.") for id in (run.id, f"{_CLIENT.sub('', run.batch)}.{run.number}"))


def _adopt(remote_run: RunSummary, spec: HostSpec, connection: ReconnectingConnection) -> RunDir:
    run = RunDir(str(store.home() / "runs" / remote_run.batch / remote_run.number))
    if os.path.lexists(run.path):
        remote = read_remote(run)
        if remote is None or not remote.adopted or remote.directory != remote_run.dir:
            message = f"host {spec.name} has a run {remote_run.id}, but another run with this id is here: {run.path}"
            raise Blocked(message, hint="`ci-tasks clean --days N` removes old runs from this machine")
    if not os.path.exists(run.claims):
        claims = connection.request(Request("describe", remote_run.dir)).description
        write_location(run, spec, remote_run.dir, adopted=True)
        write_record(run.claims, replace(claims, id=remote_run.id, host=spec.name))
    return run


# -- cancel ------------------------------------------------------------------------------------------------------------


def cancel(name: str, config: Config, host: str | None) -> list[LocatedRun]:
    """End runs with everything they started, and a command that would start more of them. Returns the runs that were
    running or waiting."""
    try:
        found = find_runs(name, config, host)
    except store.BatchHasNoRows as unprepared:
        path = str(store.home() / "runs" / unprepared.batch)
        return [LocatedRun(unprepared.batch, CANCELLED, path)] if _end_command(unprepared.batch) else []
    concerned = [id for id, run in found if pending_phase(run) or _may_run(run)]
    for batch in dict.fromkeys(store.batch_of(id) for id, _ in found) if not host else ():
        if name not in dict(found) or len(store.find(batch)) == 1:
            _end_command(batch)
            # What a command that was killed has left of its install steps.
            steps = [(f"{batch}/environments/{os.path.basename(run.path)}", run) for run in store.setup_dirs(batch)]
            found += [(id, run) for id, run in steps if _may_run(run)]
        elif not _may_run(found[0][1]) and concerned:
            raise UsageError(f"{name} has not started", hint=f"`ci-tasks cancel {batch}` ends its command")
    with attached([(id, run) for id, run in found if _may_run(run)]) as runs:
        for run in runs:
            run.poll()
            run.cancel()
        watch(runs)
        records = {run.id: run.record() for run in runs}
    for id, record in records.items():
        if record.status == LOST and record.started_at:
            raise Blocked(f"{id}: {record.reason}")
    statuses = {id: record.status for id, record in records.items() if record.exit_code == 0}  # it ended by itself
    ended = [(id, run) for id, run in found if id in concerned or not store.is_row(id)]
    return [LocatedRun(id, statuses.get(id, CANCELLED), run.path) for id, run in ended]


def _may_run(run: RunDir) -> bool:
    """Of one on another host nothing may be known here yet."""
    return (read_status(run).exists or read_remote(run) is not None) and not is_over(run)


def _end_command(batch: str) -> bool:
    """End the command that prepares or starts the rows of a batch, as ^C does. Returns whether there was one. Raises
    Blocked."""
    path = store.home() / "runs" / batch
    state = read_state_if_readable(path)
    if state is None or not state.is_active or state.owner == processes.identity():
        return False
    if not state.is_here:
        raise Blocked(f"the command of {batch} runs on {state.machine}", hint="cancel it there")
    command = f"the command of {batch}, process {state.pid}"
    print(f"ending {command}", flush=True)
    try:
        for number in (signal.SIGTERM, signal.SIGCONT):  # one that was stopped gets it, too
            os.kill(state.pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        raise Blocked(f"{command}, is another user's", hint="cancel it as that user, or as root") from None
    deadline = time.monotonic() + _COMMAND_SECONDS
    while (present := read_state_if_readable(path)) is not None and present.is_active:
        if time.monotonic() > deadline:
            raise Blocked(f"{command}, does not end", hint=f"`kill -9 {state.pid}` ends it")
        time.sleep(_POLL_SECONDS)
    return True


def shell(name: str) -> int:
    """Open bash in the run's container, or beside its workspace; its exit code."""
    _, run = find_one(name)
    remote = read_remote(run)
    if remote is None:
        if not os.path.exists(run.agent):  # it has ended, and left only its results
            raise UsageError(
                "the run's container and workspace are gone", hint="a retry took them, or --keep was not given"
            )
        return subprocess.call([sys.executable, "-I", run.agent, "shell", run.path])
    from ci_tasks.hosts.ssh import SSHConnection

    runner, directory = (shlex.quote(path) for path in (f"{remote.directory}/bin/agent.pyz", remote.directory))
    message = shlex.quote("ci-tasks: the run was removed from its host; --keep keeps a failed run")
    script = f"[ -e {runner} ] || {{ echo {message} >&2; exit 2; }}; exec python3 -I {runner} shell {directory}"
    with closing(SSHConnection(remote.address or remote.host)) as connection:
        return connection.interactive(f"exec sh -c {shlex.quote(script)}")
