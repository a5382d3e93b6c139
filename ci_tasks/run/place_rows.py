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

_REPLAN_SECONDS = 5.0  # seconds after which it is asked again where waiting rows belong, though nothing happened
_UNLIMITED = 1 << 20  # GPUs and rows of a host that itself decides when they start


@dataclass
class RowExecution:
    """One row. `prepared`, `session` and `started_at` are of its present attempt; `earlier` are those that have ended,
    and `repeats_failure`: it may be asked once more where it failed. `is_resumed`: its attempt is an earlier command's.
    `is_stopped`: another row's end ended it. `last_end` is the record and the directory of the last attempt that ended:
    the row's own, if no host is left for another one."""

    position: int
    row: Row
    expected: ExpectedTime
    prepared: PreparedRow | None = None
    session: HostSession | None = None
    started_at: float = 0.0
    record: RunRecord | None = None
    log: str = ""
    wait_reason: str = ""
    is_resumed: bool = False
    is_stopped: bool = False
    last_end: tuple[RunRecord, RunDir] | None = None
    earlier: list[Attempt] = field(default_factory=list)
    repeats_failure: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.record is None and self.prepared is None

    @property
    def is_running(self) -> bool:
        return self.record is None and self.prepared is not None

    def may_run_on(self, session: HostSession) -> bool:
        """Whether the host can run it, as far as is known, and an earlier attempt did not end there."""
        ends = [attempt.status for attempt in self.earlier if attempt.host == session.name]
        is_asked_again = self.repeats_failure and all(status in (FAILED, VACUOUS) for status in ends)
        return not session.missing_for(self.row) and (not ends or is_asked_again)

    def never_ran(self, state: RunState) -> bool:
        """Whether its attempt was on its way to the host when an earlier command was left, and never got there."""
        if self.prepared is None or not (self.is_resumed and state.aborted):
            return False
        remote = read_remote(self.prepared.run)
        return remote is not None and remote.complete and not read_status(self.prepared.run).exists

    def finish(self, record: RunRecord, run: RunDir) -> None:
        """Its record, with what came before."""
        self.record, self.log = with_attempts(run, record, self.earlier, stopped=self.is_stopped), run.log

    def retry(
        self, record: RunRecord, sessions: Sequence[HostSession], again: bool = False, same_host: bool = False
    ) -> bool:
        """Whether the row gets another attempt after this one; then it waits for it. A failed row never does, unless
        it is asked `again`, once: another result would only hide the first. `same_host`: where it failed, if no other
        host is left."""
        failed = record.status in (FAILED, VACUOUS)
        if not (record.status in (BLOCKED, LOST) or (failed and again)):
            return False
        if failed and any(attempt.status in (FAILED, VACUOUS) for attempt in self.earlier):
            return False
        self.earlier += record.attempts[-1:]
        self.repeats_failure = failed and same_host and not any(map(self.may_run_on, sessions))
        if not any(map(self.may_run_on, sessions)):
            self.earlier.pop()
            return False
        self.record = self.prepared = self.session = None
        return True

    def progress(self) -> RowProgress:
        """How it stands, for a person."""
        name, gpus, attempt = self.row.row, self.row.needed_gpus, len(self.earlier) + 1
        if self.record is not None:
            status, reason, host = self.record.status, self.record.reason, self.record.host or ""
            return RowProgress(name, status, self.record.timings.seconds, reason, host, gpus, attempt=attempt)
        first = not self.expected.from_history
        if self.prepared is None or self.session is None:
            return RowProgress(name, WAITING, None, self.wait_reason, gpus=gpus, attempt=attempt, first_run=first)
        seconds, note = time.monotonic() - self.started_at, self.session.executor.poll(self.prepared).note
        shown = running_row_progress(name, self.prepared.run, seconds, note, host=self.session.name)
        left = None if first or shown.state == WAITING else self.expected.seconds - seconds
        return replace(shown, gpus=gpus, seconds_left=left, first_run=first, attempt=attempt)


def ended_before_test(record: RunRecord) -> bool:
    """Whether the row failed or was blocked, and no test of it was seen."""
    no_test = record.evidence.kind in ("set-up", "script", "none") and not record.gpu_ids
    return record.status in (BLOCKED, FAILED) and no_test


class RowPlacer:
    """Asks the placement whenever something has happened that may let a row start. `jobs` bounds the rows at once on a
    host; else as many CPU rows as there are cores, and as many GPU rows as there are GPUs for. With `detach`, all start
    at once: the locks on the host decide which waits for which."""

    def __init__(self, ready: PreparedBatch, executions: Sequence[RowExecution], options: ExecutionOptions) -> None:
        self.seconds_left: float | None = None
        self._ready, self._executions, self._sessions = ready, executions, ready.sessions
        self._detach = options.detach
        cores = os.cpu_count() or 1
        self._slots = options.jobs or (len(ready.rows) if any(row.needed_gpus for row in ready.rows) else cores)
        self._exclusive: dict[tuple[str | None, str, str | None], frozenset[str]] = {}
        self._seen: list[tuple[object, ...]] = []
        self._planned = -_REPLAN_SECONDS

    def has_changed(self) -> bool:
        """Whether something happened that may let a row start, or it is time to ask all the same."""
        snapshot = self._snapshot()
        if snapshot == self._seen and time.monotonic() < self._planned + _REPLAN_SECONDS:
            return False
        self._seen, self._planned = snapshot, time.monotonic()
        return True

    def replan(self) -> None:
        """A row has ended, or waits again."""
        self._planned = -_REPLAN_SECONDS

    def _snapshot(self) -> list[tuple[object, ...]]:
        return [
            (each.is_ready, each.unusable_reason, each.executor.is_up, each.locked_gpus, each.facts is not None)
            for each in self._sessions
        ]

    def is_stuck(self) -> bool:
        """Whether no row runs, and one waits although a host could take it: then nothing would ever happen. A host that
        has changed since the decision is for the next one."""
        if any(execution.is_running for execution in self._executions):
            return False
        waiting = [execution for execution in self._executions if execution.is_waiting]
        has_host = any(not session.is_away for execution in waiting for session in self.hosts_of(execution))
        return has_host and self._snapshot() == self._seen

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
        return sum(each.row.needed_gpus for each in self._executions if each.is_running and each.session is session)

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
        had = [execution for execution in self._executions if execution.session is session]
        there = [execution for execution in had if execution.is_running]
        now, queues = time.monotonic(), self._detach or session.executor.has_scheduler
        return HostLoad(
            name=session.name,
            gpus=_UNLIMITED if queues or session.facts is None else session.facts.gpus,
            slots=_UNLIMITED if queues else self._slots,
            held=0 if queues else max(0, len(session.locked_gpus) - self.gpus_of_ours(session)),
            # With one host, rows wait for it where they are.
            up=session.executor.is_up or (len(self._sessions) == 1 and not session.executor.has_scheduler),
            images=session.images,
            has_code=bool(had) or queues,
            started=tuple(StartedRow(self._waiting_row(each), now - each.started_at) for each in there),
            queues=queues,
        )
