"""A row's way through a command (waiting, on a host, perhaps on another one after that, ended), and where the rows that
wait start: the placement is asked with the rows and hosts as they are at this moment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import END_CANCELLED, RunDir, read_remote, read_status
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.placement import ExpectedTime, HostLoad, StartedRow, WaitingRow, place
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, VACUOUS, Attempt, RunRecord
from ci_tasks.report.live import WAITING, RowProgress
from ci_tasks.results.runs import with_attempts
from ci_tasks.run.host_sessions import HostSession
from ci_tasks.run.prepare import PreparedBatch
from ci_tasks.run.progress import running_row_progress
from ci_tasks.run.request import RunPolicy
from ci_tasks.workflow.model import Row

_REPLAN_SECONDS = 5.0  # seconds after which it is asked again where waiting rows belong, though nothing happened
_UNLIMITED = 1 << 20  # GPUs and rows of a host whose own scheduler decides


@dataclass
class RowExecution:
    """One row. `prepared`, `session` and `started_at` are of its present attempt; `earlier` are those that have ended,
    `retry_hosts` may be asked once more. `is_moving`: it is being taken back from a host that it never reached.
    `is_resumed`: its attempt is an earlier command's. `last_end` is the record and the directory of the last attempt
    that ended: the row's own, if no host is left for another one."""

    position: int
    row: Row
    expected: ExpectedTime
    prepared: PreparedRow | None = None
    session: HostSession | None = None
    started_at: float = 0.0
    waiting_since: float = 0.0
    record: RunRecord | None = None
    log: str = ""
    wait_reason: str = ""
    is_moving: bool = False
    is_resumed: bool = False
    is_stopped: bool = False
    last_end: tuple[RunRecord, RunDir] | None = None
    earlier: list[Attempt] = field(default_factory=list)
    retry_hosts: set[str] = field(default_factory=set)

    @property
    def is_waiting(self) -> bool:
        return self.record is None and self.prepared is None

    @property
    def is_running(self) -> bool:
        return self.record is None and self.prepared is not None

    @property
    def attempt(self) -> int:
        return len(self.earlier) + 1

    def may_run_on(self, session: HostSession) -> bool:
        """Whether the host can run it, as far as is known, and an earlier attempt did not end there."""
        return (
            not session.unusable_reason
            and not session.missing_for(self.row)
            and all(attempt.host != session.name or attempt.host in self.retry_hosts for attempt in self.earlier)
        )

    def never_ran(self, state: RunState) -> bool:
        """Whether its attempt, which is over, was none: it was taken back from a host that had vanished, in time or
        just after it had begun there; or it was on its way when an earlier command was left."""
        assert self.prepared is not None
        run = self.prepared.run
        if self.is_moving:
            return (state.aborted[0] if state.aborted else read_status(run).end) in (CANCELLED, END_CANCELLED)
        remote = read_remote(run)
        nothing_there = bool(state.aborted) and remote is not None and remote.complete
        return self.is_resumed and nothing_there and not read_status(run).exists

    def finish(self, record: RunRecord, run: RunDir) -> None:
        """Its record, with what came before."""
        self.record, self.log = with_attempts(run, record, self.earlier, stopped=self.is_stopped), run.log

    def retry(
        self, record: RunRecord, sessions: Sequence[HostSession], policy: RunPolicy, *, once_more: bool = False
    ) -> bool:
        """Whether the row gets another attempt after this one; then it waits for it. A failed row never does, unless
        it is asked for, or its host was dropped (`once_more`): another result would only hide the first."""
        failed = record.status in (FAILED, VACUOUS)
        if not (record.status in (BLOCKED, LOST) or (failed and (policy.retry_failed or once_more))):
            return False
        if failed and any(attempt.status in (FAILED, VACUOUS) for attempt in self.earlier):
            return False
        self.earlier += record.attempts[-1:]
        elsewhere = any(self.may_run_on(session) for session in sessions)
        if failed and not elsewhere and record.host and policy.retry_failed:
            self.retry_hosts.add(record.host)  # a flaky test may be asked where it failed, too
            elsewhere = any(self.may_run_on(session) for session in sessions)
        if not elsewhere:
            self.earlier.pop()
            return False
        self.record = self.prepared = self.session = None
        return True

    def progress(self) -> RowProgress:
        """How it stands, for a person."""
        name, gpus, attempt = self.row.row, self.row.needed_gpus, self.attempt
        first = not self.expected.from_history
        if self.record is not None:
            status, reason, host = self.record.status, self.record.reason, self.record.host or ""
            return RowProgress(name, status, self.record.timings.seconds, reason, host, gpus, attempt=attempt)
        if self.prepared is None or self.session is None:
            return RowProgress(name, WAITING, None, self.wait_reason, gpus=gpus, attempt=attempt, first_run=first)
        seconds = time.monotonic() - self.started_at
        return running_row_progress(
            name,
            self.prepared.run,
            seconds,
            self.session.executor.poll(self.prepared).note,
            host=self.session.name,
            gpus=gpus,
            left=None if first else self.expected.seconds - seconds,
            first_run=first,
            attempt=attempt,
        )


def ended_before_test(record: RunRecord) -> bool:
    """Whether the row failed or was blocked, and no test of it was seen."""
    no_test = record.evidence.kind in ("set-up", "script", "none") and not record.gpu_ids
    return record.status in (BLOCKED, FAILED) and no_test


@dataclass(frozen=True)
class PlacementDecision:
    """Rows to start now, each with its host and the reason; why the others wait; the expected seconds until all rows
    have ended, None where that cannot be said yet."""

    starts: Sequence[tuple[RowExecution, HostSession, str]] = ()
    waits: Sequence[tuple[RowExecution, str]] = ()
    seconds_left: float | None = None


class RowPlacer:
    """Asks the placement whenever something has happened that may let a row start. `jobs` bounds the rows at once on a
    host; else as many CPU rows as there are cores, and as many GPU rows as there are GPUs for."""

    def __init__(self, ready: PreparedBatch, executions: Sequence[RowExecution], jobs: int | None) -> None:
        self._ready, self._executions, self._sessions = ready, executions, ready.sessions
        self._slots = jobs or (len(ready.rows) if any(row.needed_gpus for row in ready.rows) else os.cpu_count() or 1)
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
            (session.is_ready, session.unusable_reason, session.executor.is_up, session.locked_gpus, session.is_known)
            for session in self._sessions
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

    def decide(self, waiting: Sequence[RowExecution]) -> PlacementDecision:
        """What starts now. Nothing, as long as no host is ready."""
        usable = {each.name: each for each in self._sessions if each.is_ready and not each.unusable_reason}
        if not usable or not waiting:
            return PlacementDecision()
        rows = [self._waiting_row(execution) for execution in waiting]
        decision = place(rows, [self._load(session) for session in usable.values()])
        return PlacementDecision(
            starts=[(waiting[start.position], usable[start.host], start.why) for start in decision.starts],
            waits=[(waiting[at], why) for at, why in decision.waits.items()],
            seconds_left=decision.left,
        )

    def _waiting_row(self, execution: RowExecution) -> WaitingRow:
        return WaitingRow(
            name=execution.row.row,
            gpus=execution.row.needed_gpus,
            seconds=execution.expected.seconds,
            exclusive=self._exclusive_of(execution.row),
            hosts=frozenset(session.name for session in self.hosts_of(execution)),
            image=self._ready.planner.request.image or execution.row.image,
        )

    def _exclusive_of(self, row: Row) -> frozenset[str]:
        """What the row cannot share with another one, on some host. Rows of one test are alike in that, and so are
        hosts with one kind of containers."""
        found: frozenset[str] = frozenset()
        for session in self._sessions:
            if row.needed_gpus and session.is_ready and not session.executor.has_scheduler:
                key = (row.test, session.spec.runtime, session.spec.network)
                if key not in self._exclusive:
                    self._exclusive[key] = frozenset(self._ready.planner.exclusive(row, session))
                found |= self._exclusive[key]
        return found

    def _load(self, session: HostSession) -> HostLoad:
        had = [execution for execution in self._executions if execution.session is session]
        there = [execution for execution in had if execution.is_running]
        now, queues = time.monotonic(), session.executor.has_scheduler
        ours = sum(execution.row.needed_gpus for execution in there)
        return HostLoad(
            name=session.name,
            gpus=_UNLIMITED if queues or session.facts is None else session.facts.gpus,
            slots=_UNLIMITED if queues else self._slots,
            held=0 if queues else max(0, len(session.locked_gpus) - ours),
            # With one host, rows wait for it where they are.
            up=session.executor.is_up or (len(self._sessions) == 1 and not queues),
            images=frozenset() if queues else session.images,
            has_code=bool(had) or queues,
            started=tuple(StartedRow(self._waiting_row(each), now - each.started_at) for each in there),
            queues=queues,
        )
