"""Running rows on the hosts of a command: each as soon as a host has GPUs for it, until every one has ended.

A row waits, is on a host, perhaps on another one after that, and has ended when it has its record.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import field, replace

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status_if_readable, write_record
from ci_tasks.errors import CiTasksError, UsageError, some
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.runs import RunState
from ci_tasks.planning.placement import Durations, HostLoad, WaitingRow, expected_seconds, other_hosts, place
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, VACUOUS, Attempt, RunRecord
from ci_tasks.report.live import WAITING, RowProgress
from ci_tasks.results.load import load_record, read_run_record
from ci_tasks.results.runs import is_over, record_not_started, save_record, seconds_since_start, with_attempts
from ci_tasks.results.verdict import ended_as
from ci_tasks.run.checkout_source import ExecutionOptions
from ci_tasks.run.events import BatchJournal, EventView, RowChanged, now
from ci_tasks.run.prepare import HostSession, PreparedBatch
from ci_tasks.run.progress import running_row_progress
from ci_tasks.workflow.model import Row

_POLL_SECONDS = 0.05  # seconds between two looks at the rows, if no event comes from them
_PICTURE_SECONDS = 0.1  # between two pictures of all rows
_QUIET_SECONDS = 0.002  # after news: then they are shown at once
_LEAVE_SECONDS = 2.0  # seconds after the start of the last row for which --detach waits whether the rows wait
_UNLIMITED = 1 << 20  # GPUs and rows of a host that itself decides when they start
_FAILURES = (FAILED, VACUOUS)


def run_rows(ready: PreparedBatch, options: ExecutionOptions, view: EventView, took: Durations) -> list[RowExecution]:
    """Run all rows to their ends, in order; `took` says how long rows took before. With `detach` rows that have
    all started are left to themselves. On ^C every running row is cancelled and the others never start; a second ^C
    kills what is left at once."""
    run = LabelExecution(ready, options, view, took)
    if ready.journal:
        run.resume(ready.journal)
    run.write_waiting()
    handled = 0  # how often ^C was pressed and acted on
    try:
        while not (run.is_over or run.can_be_left()):
            while handled < ready.interrupts.count:
                handled += 1
                run.interrupt(handled)
            run.place_and_start_rows()
            ended = run.ended_row()
            run.show_progress()
            if ended:
                run.judge_and_record(*ended)
            else:
                run.wait()
        if not run.is_over:
            ready.sessions[0].executor.detach()
    except (Exception, KeyboardInterrupt):  # a closed pipe, a full disk: no row continues without us
        run.end_running(kill=True)
        raise
    run.show()
    return run.executions


@dataclass(frozen=True)
class StartedAttempt:
    """A row on a host, `since` when. `is_resumed`: an earlier command started it."""

    prepared: PreparedRow
    session: HostSession
    since: float
    is_resumed: bool = False

    @property
    def state(self) -> RunState:
        return self.session.executor.poll(self.prepared)


@dataclass
class RowExecution:
    """One row. `seconds` is how long it is expected to take, `usual_seconds` how long it took before. `earlier` are its
    attempts that have ended, and `repeats_failure`: it may be asked once more if it failed. `is_stopped`: another row's
    end ended it. `last_end` is the record and the directory of the last attempt that ended: the row's own, if no host
    is left for another one."""

    position: int
    row: Row
    seconds: float
    usual_seconds: float | None = None
    attempt: StartedAttempt | None = None
    record: RunRecord | None = None
    run: RunDir | None = None
    wait_reason: str = ""
    is_stopped: bool = False
    last_end: tuple[RunRecord, RunDir] | None = None
    earlier: list[Attempt] = field(default_factory=list)
    repeats_failure: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.record is None and self.attempt is None

    def hosts_of(self, sessions: Sequence[HostSession]) -> list[HostSession]:
        """The hosts that may run it, as far as is known: hosts on which no attempt of it ended, else perhaps hosts on
        which it failed. One that was dropped only if there is no other."""
        able = [session for session in sessions if not session.missing_for(self.row)]
        ends = {attempt.host: attempt.status for attempt in self.earlier if attempt.status != CANCELLED}
        again = [session for session in able if self.repeats_failure and ends.get(session.name) in _FAILURES]
        hosts = [session for session in able if session.name not in ends] or again
        return [session for session in hosts if not session.is_dropped] or hosts

    def finish(self, record: RunRecord, run: RunDir) -> None:
        """Its record, with what came before."""
        self.record, self.run = with_attempts(run, record, self.earlier, stopped=self.is_stopped), run
        self.attempt = None

    def progress(self) -> RowProgress:
        """How it stands, for a person."""
        known = RowProgress(self.row.row, WAITING, gpus=self.row.needed_gpus, attempt=len(self.earlier) + 1)
        if record := self.record:
            seconds, host, log = record.timings.seconds, record.host or "", self.run.log if self.run else ""
            return replace(known, state=record.status, seconds=seconds, note=record.reason, host=host, log=log)
        if self.attempt is None:
            return replace(known, note=self.wait_reason)
        seconds, host = time.monotonic() - self.attempt.since, self.attempt.session.name
        shown = running_row_progress(known.row, self.attempt.prepared.run, seconds, self.attempt.state.note, host=host)
        left = None if self.usual_seconds is None or shown.state == WAITING else self.usual_seconds - seconds
        return replace(shown, gpus=known.gpus, attempt=known.attempt, seconds_left=left)


def ended_before_test(record: RunRecord) -> bool:
    """Whether the row failed or was blocked, and no test of it was seen."""
    no_test = record.evidence.kind in ("set-up", "script", "none") and not record.gpu_ids
    return record.status in (BLOCKED, FAILED) and no_test


class LabelExecution:
    """The rows of a command and its hosts, from moment to moment."""

    def __init__(self, ready: PreparedBatch, options: ExecutionOptions, view: EventView, durations: Durations) -> None:
        self.ready, self.view, self.options, self.sessions = ready, view, options, ready.sessions
        self.executions = [
            RowExecution(at, row, expected_seconds(row.row, durations, row.needed_gpus), durations.get(row.row))
            for at, row in enumerate(ready.rows)
        ]
        self._next_picture_at = self._all_started_at = 0.0
        self._stopping = False
        # Numbers of attempts: a host may still make their directory. For an attempt that was not sent, its row, which
        # may use the number again.
        self._used: dict[int, str | None] = {}

    @property
    def is_over(self) -> bool:
        return all(execution.record is not None for execution in self.executions)

    @property
    def _waiting(self) -> list[RowExecution]:
        return [execution for execution in self.executions if execution.is_waiting]

    def _running_on(self, session: HostSession) -> list[tuple[RowExecution, StartedAttempt]]:
        return [(each, each.attempt) for each in self.executions if each.attempt and each.attempt.session is session]

    def can_be_left(self) -> bool:
        """Whether --detach was given, and all rows have started: each is known to run or to wait, or that takes too
        long to say."""
        if not self.options.detach or self._stopping:
            return False
        attempts = [each.attempt for each in self.executions if each.record is None]
        if not all(attempt and attempt.state.has_started for attempt in attempts):
            self._all_started_at = time.monotonic()
            return False
        phases = [read_status_if_readable(attempt.prepared.run).phase for attempt in attempts if attempt]
        return "starting" not in phases or time.monotonic() > self._all_started_at + _LEAVE_SECONDS

    def resume(self, journal: BatchJournal) -> None:
        """Come back to the attempts of an earlier command: what has a record has ended, what was started is watched,
        the other rows wait for a host again. Raises UsageError."""
        for execution in self.executions:
            attempts = journal.attempts(execution.row.row)
            self._used |= {int(os.path.basename(run.path)): None for _, run in attempts}
            if not attempts:  # planned at most: with one host, the plans of all rows are written first
                shutil.rmtree(self.ready.batch.run_dir(execution.position + 1).path, ignore_errors=True)
            records = [read_run_record(run) for _, run in attempts[:-1]]
            execution.earlier = [attempt for record in records if record for attempt in record.attempts[-1:]]
            if attempts:
                self._take_up(execution, *attempts[-1])
        ended, waiting = sum(execution.record is not None for execution in self.executions), len(self._waiting)
        running = len(self.executions) - ended - waiting
        self.view.print_message(f"resuming {journal.batch.id}: {ended} ended, {running} running, {waiting} waiting")

    def _take_up(self, execution: RowExecution, host: str, run: RunDir) -> None:
        """The last attempt. A host may know it; a cancelled attempt is followed by another one, and an attempt that was
        not sent is started again."""
        has_started = read_status_if_readable(run).exists or read_remote(run) is not None
        record = load_record(run) if os.path.exists(run.record) or (has_started and is_over(run)) else None
        if record and record.status == CANCELLED:
            execution.earlier += record.attempts[-1:]
        elif record:
            execution.finish(record, run)
        elif has_started:
            session = next((session for session in self.sessions if session.name == host), None)
            if session is None:
                message = f"{execution.row.row} runs on {host}, which --host does not name"
                raise UsageError(message, hint=f"add {host} to --host")
            prepared = PreparedRow(row=execution.row, plan=read_plan(run), run=run, setup=None)
            since = time.monotonic() - (seconds_since_start(run) or 0.0)
            execution.attempt = StartedAttempt(prepared, session, since, is_resumed=True)
            session.executor.reattach(prepared)
        else:
            self._used[int(os.path.basename(run.path))] = execution.row.row
            shutil.rmtree(run.path, ignore_errors=True)

    def write_waiting(self) -> None:
        """A row that no host was given yet has a directory all the same: else a killed client's row is forgotten."""
        for execution in self._waiting:
            if not os.path.exists(self.ready.batch.run_dir(execution.position + 1).path):
                self._write_unplanned(execution, execution.position + 1, "")

    # -- placing and starting ------------------------------------------------------------------------------------------

    def place_and_start_rows(self) -> None:
        for session in self.sessions:
            if session.give_up_if_away():
                self.view.print_message(f"dropping host {session.name}: {session.unusable_reason}")
        for execution in self._waiting:  # the end of one may end those behind it
            if execution.is_waiting and not execution.hosts_of(self.sessions):
                self._end_without_host(execution)
        waiting = self._waiting
        usable = {each.name: each for each in self.sessions if each.is_ready and not each.unusable_reason}
        if self._stopping or not usable or not waiting:
            return
        loads = [self._load(session) for session in usable.values()]
        starts, waits = place([self._waiting_row(execution) for execution in waiting], loads)
        for position, why in waits.items():
            waiting[position].wait_reason = why
        for position, host in starts.items():
            self._start(waiting[position], usable[host])
            self.show_progress()

    def _waiting_row(self, execution: RowExecution) -> WaitingRow:
        row, planner = execution.row, self.ready.planner
        # On the others, the locks of the host decide which waits for which.
        hosts = [each for each in self.sessions if each.is_ready and not self._queues(each)] if planner else []
        return WaitingRow(
            name=row.row,
            gpus=row.needed_gpus,
            seconds=execution.seconds,
            hosts=frozenset(session.name for session in execution.hosts_of(self.sessions)),
            exclusive=frozenset(name for host in hosts if planner for name in planner.exclusive(row, host)),
        )

    def _queues(self, session: HostSession) -> bool:
        """Whether all rows start there at once."""
        return self.options.detach or session.executor.has_scheduler

    def _load(self, session: HostSession) -> HostLoad:
        """`--jobs` bounds the rows at once on a host; else as many CPU rows as there are cores, and as many GPU rows as
        there are GPUs for."""
        queues, rows = self._queues(session), self.ready.rows
        slots = self.options.jobs or (len(rows) if any(row.needed_gpus for row in rows) else os.cpu_count() or 1)
        return HostLoad(
            name=session.name,
            gpus=_UNLIMITED if queues or session.facts is None else session.facts.gpus,
            slots=_UNLIMITED if queues else slots,
            held=0 if queues else max(0, len(session.locked_gpus) - self._gpus_of_ours(session)),
            # With one host, rows wait for it where they are.
            up=session.executor.is_up or (len(self.sessions) == 1 and not session.executor.has_scheduler),
            rows=tuple(self._waiting_row(each) for each, _ in self._running_on(session)),
        )

    def _gpus_of_ours(self, session: HostSession) -> int:
        return sum(execution.row.needed_gpus for execution, _ in self._running_on(session))

    def _start(self, execution: RowExecution, session: HostSession) -> None:
        prepared, planner = self.ready.planned_rows.pop(execution.position, None), self.ready.planner
        number = self._next_number(execution)
        try:
            if prepared is None and planner is not None:
                prepared = planner.plan_row(execution.row, session, number)
        except CiTasksError as problem:
            run = self._unplanned_run_dir(execution, number, session.name)
            self._record_attempt(execution, session, self._not_started(run, BLOCKED, problem.message), run)
            return
        assert prepared is not None, "without a planner, each row is planned and has one attempt"
        self._write_placed(execution, session.name, prepared.run)
        execution.attempt = StartedAttempt(prepared, session, time.monotonic())
        session.executor.start(prepared)

    def _next_number(self, execution: RowExecution) -> int:
        """Attempts are numbered after the rows; a row's first one has the row's own number. None is used twice, though
        nothing may be left of it: by its number, `--resume` takes its record."""
        numbers = itertools.chain([execution.position + 1], itertools.count(len(self.executions) + 1))
        number = next(each for each in numbers if self._used.get(each, execution.row.row) == execution.row.row)
        self._used[number] = None
        return number

    def _write_placed(self, execution: RowExecution, host: str, run: RunDir) -> None:
        """To be on disk before the row starts: a command that resumes this one looks for its run there."""
        attempt = len(execution.earlier) + 1
        self.view.write(RowChanged(now(), "row_placed", execution.row.row, host, attempt, directory=run.path))

    # -- ending ------------------------------------------------------------------------------------------------------

    def ended_row(self) -> tuple[RowExecution, StartedAttempt, RunState] | None:
        """A row whose attempt is over, with how."""
        for execution in self.executions:
            attempt = execution.attempt
            if attempt and (state := attempt.state).is_over:
                return execution, attempt, state
        return None

    def judge_and_record(self, execution: RowExecution, attempt: StartedAttempt, state: RunState) -> None:
        """Judge one row that has ended. It takes a while, and then what runs is looked at again."""
        run, session, row = attempt.prepared.run, attempt.session, execution.row
        if attempt.is_resumed and state.aborted and not self._stopping:
            remote = read_remote(run)
            if remote is not None and remote.complete and not read_status_if_readable(run).exists:
                # It was on its way to the host when an earlier command was left, and never got there: it waits again.
                execution.attempt = None
                shutil.rmtree(run.path, ignore_errors=True)
                return
        if state.aborted:
            record = self._not_started(run, *state.aborted)
        else:
            record = self._judged(run)
            session.executor.release(attempt.prepared)
        # Whatever the job has made of plan.json on this machine: else it would go to the same host for ever.
        attempts = tuple(replace(attempt, host=session.name) for attempt in record.attempts)
        id = attempt.prepared.plan.id
        record = replace(record, id=id, label=row.label, row=row.row, host=session.name, attempts=attempts)
        self._record_attempt(execution, session, record, run)

    def _judged(self, run: RunDir) -> RunRecord:
        """The record; if the row's own install steps failed, with the override that would help."""
        from ci_tasks.results.judge_run import judge_run

        try:
            record = judge_run(run)
        except RecordError as problem:  # a job on this machine may have changed what is read
            return record_not_started(run, LOST, str(problem))
        if record.status != BLOCKED or self.ready.planner is None:
            return record
        reason = self.ready.planner.install_problem(record.reason)
        return record if reason == record.reason else save_record(run, ended_as(record, BLOCKED, reason))

    def _not_started(self, run: RunDir, status: str, reason: str) -> RunRecord:
        """A terminal sends ^C to the programs of a start too, such as git: that they failed is not the host's fault."""
        if status == BLOCKED and self.ready.interrupts.count:
            status, reason = CANCELLED, f"cancelled during its start: {reason}"
        return record_not_started(run, status, reason)

    def _record_attempt(self, execution: RowExecution, session: HostSession, record: RunRecord, run: RunDir) -> None:
        """An attempt has its record: another one follows, or it was the last."""
        if record.status not in (LOST, CANCELLED):
            session.first_rows = (*session.first_rows, ended_before_test(record))[:2]
        if session.first_rows == (True, True) and not (self._stopping or session.is_dropped):
            self._drop_host(session, record)
        if not self._try_again(execution, record, run):
            self._finish(execution, record, run)

    def _finish(self, execution: RowExecution, record: RunRecord, run: RunDir) -> None:
        """The row has its record. It may end the others, too: with --fail-fast, and with --detach, for which all rows
        start or none does."""
        execution.finish(record, run)
        name, status = execution.row.row, record.counted_status
        failed = self.options.fail_fast and status in _FAILURES
        if self._stopping or not (failed or (self.options.detach and record.started_at is None)):
            return
        self._stopping = True
        why = f"{name} ended as {status} (--fail-fast)" if failed else f"{name} could not start (--detach: all or none)"
        self.view.print_message(f"cancelling the other rows, since {why}")
        for other in self.executions:
            other.is_stopped = other.record is None
        for waiting in self._waiting:
            self._finish_unstarted(waiting, CANCELLED, f"not started, since {why}")
        self.end_running(kill=False)

    def _drop_host(self, session: HostSession, record: RunRecord) -> None:
        """No test was seen of the first two rows there: while there is another host, rows go to that one."""
        if all(other is session or other.unusable_reason or other.is_dropped for other in self.sessions):
            return
        session.is_dropped = True
        self.view.print_message(
            f"dropping host {session.name}: no test of its first two rows ran ({record.reason}); "
            "rows go to another host if one can run them"
        )
        for execution in self.executions:
            if execution.record is not None and execution.run and execution.record.host == session.name:
                self._try_again(execution, execution.record, execution.run)

    def _try_again(self, execution: RowExecution, record: RunRecord, run: RunDir) -> bool:
        """Whether another attempt follows; then the row waits for it. After a failure only with --retry-failed, or if
        its host was dropped before a test was seen, and once: another result would only hide the first."""
        was_dropped = any(host.is_dropped for host in self.sessions if host.name == record.host)
        once_more = self.options.retry_failed or (was_dropped and ended_before_test(record))
        has_failed = any(attempt.status in _FAILURES for attempt in execution.earlier)
        failed = record.status in _FAILURES
        if self._stopping or not (once_more and not has_failed if failed else record.status in (BLOCKED, LOST)):
            return False
        execution.earlier += record.attempts[-1:]
        execution.repeats_failure = failed and self.options.retry_failed
        if not execution.hosts_of(self.sessions):
            execution.earlier.pop()
            return False
        execution.record = execution.attempt = None
        execution.last_end = (record, run)
        row = execution.row.row
        self.view.print_message(f"{record.status:<9} {row} on {record.host}: {record.reason}; trying again")
        return True

    def _end_without_host(self, execution: RowExecution) -> None:
        """No host can run the row. What its last attempt showed stays true, if there was one."""
        if execution.last_end is not None:
            execution.earlier.pop()
            execution.finish(*execution.last_end)
            return
        row, session, planner = execution.row, self.sessions[0], self.ready.planner
        whys = ["; ".join(each.missing_for(row)) or "an earlier attempt ended there" for each in self.sessions]
        if len(whys) > 1:
            of_hosts = (f"{each.name}: {why}" for each, why in zip(self.sessions, whys, strict=True))
            reason = f"no host can run it: {'; '.join(of_hosts)}"
        elif planner is None or not (lacks := replace(session, unusable_reason="").missing_for(row)):
            reason = whys[0]
        else:
            others = some(other_hosts(row, planner.config.hosts, session.name, self.ready.checkout.sample), 3)
            advice = f"could run on: {others}" if others else "no other host of hosts.yaml could run it"
            reason = f"{session.name} lacks {'; '.join(lacks)}; {advice}"
        self._finish_unstarted(execution, BLOCKED, reason)

    def _finish_unstarted(self, execution: RowExecution, status: str, reason: str) -> None:
        """The record of a row that never began."""
        planned_row = self.ready.planned_rows.pop(execution.position, None)
        run = planned_row.run if planned_row else self._unplanned_run_dir(execution, self._next_number(execution))
        self._finish(execution, record_not_started(run, status, reason), run)

    def _unplanned_run_dir(self, execution: RowExecution, number: int, host: str = "") -> RunDir:
        """The run directory of a row that has no plan: no host was given it, or `host` cannot say what it would run."""
        run = self._write_unplanned(execution, number, host)
        self._write_placed(execution, host, run)
        return run

    def _write_unplanned(self, execution: RowExecution, number: int, host: str) -> RunDir:
        run, row = self.ready.batch.run_dir(number), execution.row
        os.makedirs(run.path, exist_ok=True)
        id, gpus, checkout = self.ready.batch.run_id(number), row.needed_gpus, self.ready.checkout
        plan = Plan(id, row.label, row.job, row.row, host, test=row.test, gpus=gpus, checkout=checkout)
        write_record(run.plan, plan)
        return run

    # -- ^C ----------------------------------------------------------------------------------------------------------

    def interrupt(self, count: int) -> None:
        """^C was pressed for the `count`-th time."""
        self._stopping = True
        if self.ready.threads:
            self.ready.threads.abandoned.set()
        for execution in self.executions:
            execution.is_stopped = False
            if execution.is_waiting:
                self._finish_unstarted(execution, CANCELLED, "cancelled before it started")
        running = sum(execution.attempt is not None for execution in self.executions)
        if count == 1 and running:
            self.view.print_message(f"cancelling the running rows ({running}); ^C again kills them")
        self.end_running(kill=count > 1, leaves=True)

    def end_running(self, *, kill: bool, leaves: bool = False) -> None:
        """A person who `leaves` does not wait for a host whose link is down."""
        for session in self.sessions:
            if there := [attempt.prepared for _, attempt in self._running_on(session)]:
                session.executor.cancel(there, kill=kill or (leaves and not session.executor.is_up))

    # -- showing -----------------------------------------------------------------------------------------------------

    def show_progress(self) -> None:
        lines = [line for session in self.sessions for line in session.executor.drain_messages()]
        for line in [*lines, *(self.ready.threads.drain_messages() if self.ready.threads else ())]:
            self.view.print_message(line)
        if time.monotonic() > self._next_picture_at:
            self.show()

    def show(self) -> None:
        several = self.sessions if len(self.sessions) > 1 else ()
        hosts = [session.progress(self._gpus_of_ours(session)) for session in several]
        self.view.update([execution.progress() for execution in self.executions], hosts)
        self._next_picture_at = time.monotonic() + _PICTURE_SECONDS

    def wait(self) -> None:
        if len(self.sessions) == 1:
            wait = self.sessions[0].executor.wait
            if wait(_POLL_SECONDS) and not wait(_QUIET_SECONDS):
                self._next_picture_at = 0.0
        else:
            time.sleep(_POLL_SECONDS)
