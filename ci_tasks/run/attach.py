"""`attach`, `fetch`, `cancel` and `logs --follow`: coming back to runs, wherever they are.

A run of this machine is read where it is. The files of one on another host are fetched first: their mirror grows on
from where it stopped. Several people may watch one run, and several processes here: one of them writes the mirror.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from ci_tasks import registry
from ci_tasks.agent import processes
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import RemoteLocation
from ci_tasks.agent.run_directory import RunDir, read_description, read_plan, read_remote, read_status, write_record
from ci_tasks.agent.serving.messages import Cancel, DescribeRun, ListRuns, RunSummary
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import Blocked, UnknownName, UsageError
from ci_tasks.hosts import executors
from ci_tasks.hosts.connection import ReconnectingConnection
from ci_tasks.hosts.remote_run import RemoteRun, RunState, lock_mirror, secrets_of, write_remote_location
from ci_tasks.hosts.run_manager import RemoteRunManager, open_remote_host
from ci_tasks.records import CANCELLED, LOST, PLANNED, RUNNING, BatchResult, LocatedRun, RunRecord
from ci_tasks.report.live import WAITING, RowProgress
from ci_tasks.results import store
from ci_tasks.results.batch_state import read_state_if_readable
from ci_tasks.results.load import load_record
from ci_tasks.results.runs import is_over, pending_phase, record_not_started, seconds_since_start
from ci_tasks.run.events import EventStream, EventView, RunEnded, now
from ci_tasks.run.progress import GrowingLog, open_view, running_row_progress
from ci_tasks.run.results_table import kept_lines, print_results

_POLL_SECONDS = 0.05
_COMMAND_SECONDS = 60.0  # that a command which was asked to end gets
_WAITS_FOR = {
    "preparing": "its command prepares it",
    "installing": "install steps",
    "running": "its command starts it later",
}


@dataclass
class AttachedRun:
    """A run that somebody came back to. `remote_run` is ours to fetch; without one the run is here, or another process
    fetches it: `claim` makes it ours as soon as that process has ended."""

    id: str
    run: RunDir
    remote_run: RemoteRun | None = None
    claim: Callable[[AttachedRun], None] = lambda _run: None

    def poll(self) -> RunState:

        if self.remote_run is None:
            self.claim(self)
        if self.remote_run is not None:
            return self.remote_run.state
        return RunState(is_complete=is_over(self.run), note=_WAITS_FOR.get(pending_phase(self.run), ""))

    def has_ended(self) -> bool:
        return self.poll().is_over


def attach(name: str, config: Config, host: str | None, events: EventStream | None = None) -> BatchResult:
    """Follow runs to their end and fetch their files."""
    runs = _wait_for_rows(name, config, host)
    if all(load_record(run).status == PLANNED for _, run in runs):
        raise UsageError(f"{name} was only planned", hint=f"`bash {runs[0][1].script}` runs a row by hand")
    if any(pending_phase(run) == "installing" for _, run in runs):
        print(f"{name}: waiting for the install steps", flush=True)
    with attached_runs(runs) as (attached, managers):
        _follow(name, attached, managers, events)
        records = [_record(attached_run) for attached_run in attached]
    batches = dict.fromkeys(store.batch_of(attached_run.id) for attached_run in attached)
    logs = [attached_run.run.log for attached_run in attached]
    result = print_results(records, logs, ", ".join(batches), also=kept_lines(records, logs))
    codes = [code for record, log in zip(records, logs, strict=True) for code in _summaries(record, log)]
    result = replace(result, exit_code=next(filter(None, codes), 0)) if codes else result
    if events:
        events.write(RunEnded(now(), result.id, result.status, result.exit_code or 0))
    return result


def _summaries(record: RunRecord, log: str) -> list[int]:
    """The exit codes of what features print of a run that has ended."""
    hooks = [registry.load(feature.run_summary) for feature in registry.features() if feature.run_summary]
    codes = [hook(record, os.path.dirname(log)) for hook in hooks]
    return [code for code in codes if code is not None]


def fetch(name: str, config: Config, host: str | None) -> list[LocatedRun]:
    """Fetch what there is of runs: everything of those that have ended, the log so far of the others."""
    fetched = []
    with attached_runs(find_runs(name, config, host)) as (attached, managers):
        for attached_run in attached:
            while not (attached_run.has_ended() or _is_caught_up(attached_run)):
                for line in _messages(managers):
                    print(line, flush=True)
                time.sleep(_POLL_SECONDS)
        goes_on = [attached_run for attached_run in attached if not attached_run.has_ended()]
        for attached_run in attached:
            status = RUNNING if attached_run in goes_on else _record(attached_run).status
            state = "still running, its log so far" if status == RUNNING else status
            print(f"{attached_run.id}: {state}: {attached_run.run.path}")
            fetched.append(LocatedRun(attached_run.id, status, attached_run.run.path))
    return fetched


def cancel(name: str, config: Config, host: str | None) -> list[LocatedRun]:
    """End runs with everything they started, and a command that would start more of them. Returns those that were
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
            found += _install_steps(batch)
        elif not _may_run(found[0][1]) and concerned:
            raise UsageError(f"{name} has not begun", hint=f"`ci-tasks cancel {batch}` ends its command")
    _cancel_runs([(id, run) for id, run in found if _may_run(run)])
    ended = [(id, run) for id, run in found if id in concerned or not store.is_row(id)]
    return [LocatedRun(id, CANCELLED, run.path) for id, run in ended]


def _end_command(batch: str) -> bool:
    """End the command that prepares or starts the rows of a batch, as ^C does. Returns whether there was one. Raises
    Blocked."""
    path = store.home() / "runs" / batch
    state = read_state_if_readable(path)
    if state is None or not state.is_active or state.owner == processes.identity():
        return False
    if not state.is_here:
        raise Blocked(f"the command of {batch} runs on {state.machine}", hint="cancel it there")
    print(f"ending the command of {batch}, process {state.pid}", flush=True)
    try:
        for number in (signal.SIGTERM, signal.SIGCONT):  # one that was stopped hears of it, too
            os.kill(state.pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        raise Blocked(f"the command of {batch}, process {state.pid}, belongs to another user") from None
    deadline = time.monotonic() + _COMMAND_SECONDS
    while (now := read_state_if_readable(path)) is not None and now.is_active:
        if time.monotonic() > deadline:
            raise Blocked(
                f"the command of {batch}, process {state.pid}, does not end", hint=f"`kill -9 {state.pid}` ends it"
            )
        time.sleep(_POLL_SECONDS)
    return True


def _install_steps(batch: str) -> list[tuple[str, RunDir]]:
    """What a command that was killed has left of its install steps."""
    return [
        (f"{batch}/environments/{os.path.basename(run.path)}", run) for run in store.setup_dirs(batch) if _may_run(run)
    ]


def _cancel_runs(runs: Sequence[tuple[str, RunDir]]) -> None:
    with attached_runs(runs) as (attached, managers):
        for attached_run in attached:
            if attached_run.remote_run is not None:
                managers[_location(attached_run.run).host].cancel(attached_run.remote_run, "cancel")
            elif not os.path.exists(attached_run.run.remote):
                executors.cancel(attached_run.run)
            else:  # another command here fetches it
                _ask_to_cancel(attached_run.run)
        for attached_run in attached:
            while not attached_run.has_ended():
                for line in _messages(managers):
                    print(line, flush=True)
                time.sleep(_POLL_SECONDS)
            record = _record(attached_run)
            if record.status == LOST and record.started_at:
                raise Blocked(f"{attached_run.id}: {record.reason}")


def follow_log(id: str, run: RunDir, log: GrowingLog) -> None:
    """Copy the run's log as it grows, until the run has ended."""
    with attached_runs([(id, run)]) as ((attached_run,), _):
        while not attached_run.has_ended():
            time.sleep(_POLL_SECONDS)
            log.copy()
        log.copy()
        _record(attached_run)  # whoever fetches a run also records how it ended


def _wait_for_rows(name: str, config: Config, host: str | None) -> list[tuple[str, RunDir]]:
    """What `find_runs` returns; of a command that is being prepared, as soon as its rows are known."""
    waits = False
    while True:
        try:
            return find_runs(name, config, host)
        except store.BatchHasNoRows as unprepared:
            if not unprepared.state.is_active:
                raise
            if not waits:
                print(f"{unprepared.batch} is being prepared: waiting for its rows", flush=True)
            waits, name = True, unprepared.batch
        time.sleep(_POLL_SECONDS)


def find_runs(name: str, config: Config, host: str | None) -> list[tuple[str, RunDir]]:
    """The runs that `name` means: those kept here; with `host` those on it, which are then known here too."""
    return adopt_runs(name, config.host(host)) if host else store.find(name)


@contextmanager
def attached_runs(
    runs: Sequence[tuple[str, RunDir]],
) -> Iterator[tuple[list[AttachedRun], dict[str, RemoteRunManager]]]:
    """The runs, each growing here while the block lasts. Runs of other hosts that no process fetches yet are ours."""
    managers: dict[str, RemoteRunManager] = {}

    def claim(attached_run: AttachedRun) -> None:
        held = None if _is_complete(attached_run.run) else lock_mirror(attached_run.run)
        if held is None:
            return
        if _is_complete(attached_run.run):  # by now
            held.close()
            return
        remote = _location(attached_run.run)
        if remote.host not in managers:
            managers[remote.host] = open_remote_host(host_of_run(remote))
        attached_run.remote_run = RemoteRun(
            run=attached_run.run,
            directory=remote.directory,
            lock=held,
            keep_remote=remote.adopted,
            # Of our own plans only: another could name any variable of ours.
            secrets=secrets_of(read_plan(attached_run.run).secrets, os.environ),
        )
        managers[remote.host].attach(attached_run.remote_run)

    attached = [AttachedRun(id, run, claim=claim) for id, run in runs]
    try:
        for attached_run in attached:
            claim(attached_run)
        yield attached, managers
    finally:
        for manager in managers.values():
            manager.detach()
            manager.close()


def _is_complete(run: RunDir) -> bool:
    """Whether nothing of the run is to be brought from anywhere."""
    remote = read_remote(run)
    return remote is None or remote.complete


def _follow(
    name: str, attached: Sequence[AttachedRun], managers: dict[str, RemoteRunManager], events: EventStream | None
) -> None:
    view = open_view(name, [attached_run.run for attached_run in attached])
    if events:
        view = EventView(view, events)
    try:
        while True:
            for line in _messages(managers):
                view.print_message(line)
            states = [attached_run.poll() for attached_run in attached]
            view.update([_progress(attached_run, state) for attached_run, state in zip(attached, states, strict=True)])
            if all(state.is_over for state in states):
                return
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        view.print_message(
            f"the runs continue; `ci-tasks attach {name}` follows them, `ci-tasks cancel {name}` ends them"
        )
        raise
    finally:
        view.close()


def _progress(attached: AttachedRun, state: RunState) -> RowProgress:
    described = read_description(attached.run)
    row, host = described.row, described.host
    if state.is_over:
        record = load_record(attached.run)
        status = state.aborted[0] if state.aborted else record.status
        return RowProgress(row, status, record.timings.seconds, host=host)
    seconds = seconds_since_start(attached.run)
    if seconds is None:
        return RowProgress(row, WAITING, None, state.note, host)
    return running_row_progress(row, attached.run, seconds, state.note, host=host)


def _record(attached: AttachedRun) -> RunRecord:
    state = attached.poll()
    return record_not_started(attached.run, *state.aborted) if state.aborted else load_record(attached.run)


def _is_caught_up(attached: AttachedRun) -> bool:
    """Whether the run goes on and its log here is what the host had a moment ago."""
    mirror = attached.remote_run.mirror if attached.remote_run else None
    return (
        mirror is not None
        and mirror.has_status
        and not (mirror.ended.is_set() or mirror.status.has_ended or mirror.status.gone)
        and mirror.offset >= mirror.status.log_bytes
    )


def _messages(managers: dict[str, RemoteRunManager]) -> list[str]:
    return [line for manager in managers.values() for line in manager.connection.drain_messages()]


def _ask_to_cancel(run: RunDir) -> None:
    remote = _location(run)
    with closing(open_remote_host(host_of_run(remote))) as manager:
        manager.connection.request(Cancel(remote.directory))


def _may_run(run: RunDir) -> bool:
    """Of one on another host nothing may be known here yet."""
    return (read_status(run).exists or read_remote(run) is not None) and not is_over(run)


def _location(run: RunDir) -> RemoteLocation:
    """Of a run that is on another host."""
    remote = read_remote(run)
    assert remote is not None
    return remote


_MAX_LISTED = 10
_CLIENT = re.compile(r"-[0-9a-f]{6}$")  # the end of a batch's directory on a host: see store.client_id


def adopt_runs(name: str, spec: HostSpec) -> list[tuple[str, RunDir]]:
    """The runs of the host by that name. Raises UnknownName, UsageError, Blocked."""
    from ci_tasks.hosts.run_manager import open_remote_host

    if spec.kind == "local":
        raise UsageError(f"host {spec.name} is this machine", hint="its runs are known without --host")
    with closing(open_remote_host(spec)) as manager:
        listed = list({run.dir: run for run in manager.connection.request(ListRuns()).runs if run.is_row}.values())
        adopted = [(run.id, _adopt(run, spec, manager.connection)) for run in listed if _is_called(run, name)]
    if not adopted:
        raise UnknownName("run", name, _newest(listed), where=f"host {spec.name}")
    return adopted


def _is_called(run: RunSummary, name: str) -> bool:
    """Whoever began it knows it without the end of its batch's name."""
    ids = (run.id, f"{_CLIENT.sub('', run.batch)}.{run.number}")
    return any(f"{id}.".startswith(f"{name}.") for id in ids)


def _adopt(remote_run: RunSummary, spec: HostSpec, connection: ReconnectingConnection) -> RunDir:
    run = RunDir(str(store.home() / "runs" / remote_run.batch / remote_run.number))
    if os.path.lexists(run.path):
        _check_same(run, remote_run, spec)
    if not os.path.exists(run.claims):
        claims = connection.request(DescribeRun(remote_run.dir)).description
        write_remote_location(run, spec, remote_run.dir, adopted=True)
        write_record(run.claims, replace(claims, id=remote_run.id, host=spec.name))
    return run


def _check_same(run: RunDir, remote_run: RunSummary, spec: HostSpec) -> None:
    remote = read_remote(run)
    if remote is None or not remote.adopted or remote.directory != remote_run.dir:
        raise Blocked(
            f"host {spec.name} has a run {remote_run.id}, and another one by that name is here: {run.path}",
            hint="`ci-tasks clean --days N` removes old runs from this machine",
        )


def _newest(runs: Sequence[RunSummary]) -> list[str]:
    return sorted({run.id for run in runs}, reverse=True)[:_MAX_LISTED]


def host_of_run(remote: RemoteLocation) -> HostSpec:
    """The host where the run is, as it was called then: hosts.yaml may say something else by now."""
    return HostSpec(remote.host, remote.kind, remote.address, workspace=remote.workspace, persist=remote.persist)
