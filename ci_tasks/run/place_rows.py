"""A row's way through a command (waiting, on a host, perhaps on another one after that, ended), and where the rows that
wait start: the placement is asked with the rows and hosts as they are at this moment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_remote, read_status
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.placement import ExpectedTime, HostLoad, StartedRow, WaitingRow, place
from ci_tasks.records import BLOCKED, FAILED, LOST, VACUOUS, Attempt, RunRecord
from ci_tasks.report.live import WAITING, RowProgress
from ci_tasks.results.runs import with_attempts
from ci_tasks.run.host_session import HostSession
from ci_tasks.run.prepare import PreparedBatch
from ci_tasks.run.progress import running_row_progress
from ci_tasks.run.request import ExecutionOptions
from ci_tasks.workflow.model import Row

_UNLIMITED = 1 << 20  # GPUs and rows of a host that itself decides when they start
_FAILURES = (FAILED, VACUOUS)


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

    def never_ran(self, state: RunState) -> bool:
        """Whether it was on its way to the host when an earlier command was left, and never got there."""
        if not (self.is_resumed and state.aborted):
            return False
        remote = read_remote(self.prepared.run)
        return remote is not None and remote.complete and not read_status(self.prepared.run).exists


@dataclass
class RowExecution:
    """One row. `earlier` are its attempts that have ended, and `repeats_failure`: it may be asked once more where it
    failed. `is_stopped`: another row's end ended it. `last_end` is the record and the directory of the last attempt
    that ended: the row's own, if no host is left for another one."""

    position: int
    row: Row
    expected: ExpectedTime
    attempt: StartedAttempt | None = None
    record: RunRecord | None = None
    log: str = ""
    wait_reason: str = ""
    has_number: bool = False
    is_stopped: bool = False
    last_end: tuple[RunRecord, RunDir] | None = None
    earlier: list[Attempt] = field(default_factory=list)
    repeats_failure: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.record is None and self.attempt is None

    @property
    def running(self) -> StartedAttempt | None:
        return self.attempt if self.record is None else None

    def may_run_on(self, session: HostSession) -> bool:
        """Whether the host can run it, as far as is known, and an earlier attempt did not end there."""
        ends = [attempt.status for attempt in self.earlier if attempt.host == session.name]
        is_asked_again = self.repeats_failure and all(status in _FAILURES for status in ends)
        return not session.missing_for(self.row) and (not ends or is_asked_again)

    def finish(self, record: RunRecord, run: RunDir) -> None:
        """Its record, with what came before."""
        self.record, self.log = with_attempts(run, record, self.earlier, stopped=self.is_stopped), run.log

    def retry(
        self, record: RunRecord, sessions: Sequence[HostSession], again: bool = False, same_host: bool = False
    ) -> bool:
        """Whether the row gets another attempt after this one; then it waits for it. A failed row never does, unless
        it is asked `again`, once: another result would only hide the first. `same_host`: where it failed, if no other
        host is left."""
        failed = record.status in _FAILURES
        if failed:
            may_retry = again and not any(attempt.status in _FAILURES for attempt in self.earlier)
        else:
            may_retry = record.status in (BLOCKED, LOST)
        if not may_retry:
            return False
        self.earlier += record.attempts[-1:]
        self.repeats_failure = failed and same_host and not any(map(self.may_run_on, sessions))
        if not any(map(self.may_run_on, sessions)):
            self.earlier.pop()
            return False
        self.record = self.attempt = None
        return True

    def progress(self) -> RowProgress:
        """How it stands, for a person."""
        known = RowProgress(self.row.row, WAITING, gpus=self.row.needed_gpus, attempt=len(self.earlier) + 1)
        if record := self.record:
            seconds, host = record.timings.seconds, record.host or ""
            return replace(known, state=record.status, seconds=seconds, note=record.reason, host=host, log=self.log)
        known = replace(known, first_run=not self.expected.from_history)
        if self.attempt is None:
            return replace(known, note=self.wait_reason)
        seconds, host = time.monotonic() - self.attempt.since, self.attempt.session.name
        shown = running_row_progress(known.row, self.attempt.prepared.run, seconds, self.attempt.state.note, host=host)
        left = None if known.first_run or shown.state == WAITING else self.expected.seconds - seconds
        return replace(shown, gpus=known.gpus, attempt=known.attempt, first_run=known.first_run, seconds_left=left)


def ended_before_test(record: RunRecord) -> bool:
    """Whether the row failed or was blocked, and no test of it was seen."""
    no_test = record.evidence.kind in ("set-up", "script", "none") and not record.gpu_ids
    return record.status in (BLOCKED, FAILED) and no_test


class RowPlacer:
    """Asks the placement with the rows and hosts as they are. `jobs` bounds the rows at once on a host; else as many
    CPU rows as there are cores, and as many GPU rows as there are GPUs for. With `detach`, all start at once: the locks
    on the host decide which waits for which."""

    def __init__(self, ready: PreparedBatch, executions: Sequence[RowExecution], options: ExecutionOptions) -> None:
        self.seconds_left: float | None = None
        self._ready, self._executions, self._sessions = ready, executions, ready.sessions
        self._detach = options.detach
        cores = os.cpu_count() or 1
        self._slots = options.jobs or (len(ready.rows) if any(row.needed_gpus for row in ready.rows) else cores)
        self._exclusive: dict[tuple[str | None, str, str | None], frozenset[str]] = {}

    def hosts_of(self, execution: RowExecution) -> list[HostSession]:
        """The hosts that may run the row, as far as is known; one that was dropped only if there is no other."""
        hosts = [session for session in self._sessions if execution.may_run_on(session)]
        return [session for session in hosts if not session.is_dropped] or hosts

    def decide(self, waiting: Sequence[RowExecution]) -> list[tuple[RowExecution, HostSession]]:
        """What starts now and where; each other row hears why it waits. Nothing, as long as no host is ready."""
        usable = {each.name: each for each in self._sessions if each.is_ready and not each.unusable_reason}
        self.seconds_left = None
        if not usable or not waiting:
            return []
        rows = [self._waiting_row(execution) for execution in waiting]
        decision = place(rows, [self._load(session) for session in usable.values()])
        self.seconds_left = decision.left
        for position, why in decision.waits.items():
            waiting[position].wait_reason = why
        return [(waiting[start.position], usable[start.host]) for start in decision.starts]

    def gpus_of_ours(self, session: HostSession) -> int:
        """How many GPUs our rows have there."""
        return sum(execution.row.needed_gpus for execution, _ in self._running_on(session))

    def _running_on(self, session: HostSession) -> list[tuple[RowExecution, StartedAttempt]]:
        running = [(each, attempt) for each in self._executions if (attempt := each.running)]
        return [(each, attempt) for each, attempt in running if attempt.session is session]

    def _waiting_row(self, execution: RowExecution) -> WaitingRow:
        return WaitingRow(
            name=execution.row.row,
            gpus=execution.row.needed_gpus,
            seconds=execution.expected.seconds,
            exclusive=self._exclusive_of(execution.row),
            hosts=frozenset(session.name for session in self.hosts_of(execution)),
            image=self._ready.planner.image_of(execution.row),
        )

    def _exclusive_of(self, row: Row) -> frozenset[str]:
        """What the row cannot share with another one, on some host. Rows of one test are alike in that, and so are
        hosts with one kind of containers."""
        found: frozenset[str] = frozenset()
        for session in self._sessions:
            if row.needed_gpus and session.is_ready and not (self._detach or session.executor.has_scheduler):
                key = (row.test, session.spec.runtime, session.spec.network)
                if key not in self._exclusive:
                    self._exclusive[key] = frozenset(self._ready.planner.exclusive(row, session))
                found |= self._exclusive[key]
        return found

    def _load(self, session: HostSession) -> HostLoad:
        queues, now = self._detach or session.executor.has_scheduler, time.monotonic()
        had_rows = any(each.attempt and each.attempt.session is session for each in self._executions)
        running = self._running_on(session)
        return HostLoad(
            name=session.name,
            gpus=_UNLIMITED if queues or session.facts is None else session.facts.gpus,
            slots=_UNLIMITED if queues else self._slots,
            held=0 if queues else max(0, len(session.locked_gpus) - self.gpus_of_ours(session)),
            # With one host, rows wait for it where they are.
            up=session.executor.is_up or (len(self._sessions) == 1 and not session.executor.has_scheduler),
            images=session.images,
            has_code=had_rows or queues,
            started=tuple(StartedRow(self._waiting_row(each), now - attempt.since) for each, attempt in running),
            queues=queues,
        )
