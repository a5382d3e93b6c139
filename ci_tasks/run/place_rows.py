"""Asks the placement which rows start now, with the rows and hosts as they are at this moment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import END_CANCELLED, RunDir, read_remote, read_status
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.placement import ExpectedTime, HostLoad, StartedRow, WaitingRow, place
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, VACUOUS, Attempt, RunRecord
from ci_tasks.report.live import WAITING, HostProgress, RowProgress
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
    """One row. `prepared` and `station` are those of its present attempt, `since` when it began there, `asked` when
    it began to wait; `earlier` are those that have ended, `again` the hosts that may be asked
    once more, and `why` says what it waits for. `moving`: it is being taken
    back from a host that it never reached. `resumed`: its attempt is an earlier command's. `last_end` is the record and
    the directory of the last attempt that ended: the row's own, if no host is left for another one."""

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
            ended = state.aborted[0] if state.aborted else read_status(run).end
            return ended in (CANCELLED, END_CANCELLED)
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
        self._hosts: dict[tuple[Any, ...], frozenset[str]] = {}  # of one decision, as is `kinds`
        self._kinds: dict[tuple[str, str | None], HostSession] = {}
        self._seen: list[tuple[Any, ...]] = []
        self._planned = -_REPLAN_SECONDS

    def has_changed(self) -> bool:
        """Whether something happened that may let a row start, or it is time to ask all the same."""
        snapshot = self._snapshot()
        if snapshot == self._seen and time.monotonic() < self._planned + _REPLAN_SECONDS:
            return False
        self._seen, self._planned = snapshot, time.monotonic()
        return True

    def _snapshot(self) -> list[tuple[Any, ...]]:
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

    def replan(self) -> None:
        """A row has ended, or waits again."""
        self._planned = -_REPLAN_SECONDS

    def hosts_of(self, execution: RowExecution) -> list[HostSession]:
        """The hosts that may run the row, as far as is known; one that was dropped only if there is no other."""
        hosts = [session for session in self._sessions if execution.may_run_on(session)]
        return [session for session in hosts if not session.is_dropped] or hosts

    def decide(self, waiting: Sequence[RowExecution]) -> PlacementDecision:
        """What starts now. Nothing, as long as no host is ready."""
        usable = {
            session.name: session for session in self._sessions if session.is_ready and not session.unusable_reason
        }
        if not usable or not waiting:
            return PlacementDecision()
        self._hosts = {}
        self._kinds = {
            (session.spec.runtime, session.spec.network): session
            for session in usable.values()
            if not session.executor.has_scheduler
        }
        there: dict[str, list[RowExecution]] = {}
        for execution in self._executions:
            if execution.session is not None:
                there.setdefault(execution.session.name, []).append(execution)
        rows = [self._waiting_row(execution) for execution in waiting]
        decision = place(rows, [self._load(session, there.get(session.name, [])) for session in usable.values()])
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
            exclusive=self._exclusive_of(execution),
            hosts=self._host_names(execution),
            image=self._ready.planner.request.image or execution.row.image,
            waited=time.monotonic() - execution.waiting_since,
        )

    def _host_names(self, execution: RowExecution) -> frozenset[str]:
        """Where it may run. Rows that want the same and were nowhere yet are many, and hosts may be."""
        row = execution.row
        own = row.row if any(session.row_problems for session in self._sessions) else ""
        key = (
            row.needed_gpus,
            bool(row.image),
            own,
            *((session.host, session.host in execution.retry_hosts) for session in execution.earlier),
        )
        if key not in self._hosts:
            self._hosts[key] = frozenset(session.name for session in self.hosts_of(execution))
        return self._hosts[key]

    def _exclusive_of(self, execution: RowExecution) -> frozenset[str]:
        """What the row cannot share with another one, on some host."""
        sessions = self._kinds.values() if execution.row.needed_gpus else ()
        return frozenset().union(*(self._exclusive_on(execution.row, session) for session in sessions))

    def _exclusive_on(self, row: Row, session: HostSession) -> frozenset[str]:
        """Rows of one test are alike in that, and so are hosts with one kind of containers."""
        key = (row.test, session.spec.runtime, session.spec.network)
        if key not in self._exclusive:
            self._exclusive[key] = frozenset(self._ready.planner.exclusive(row, session))
        return self._exclusive[key]

    def _load(self, session: HostSession, had: Sequence[RowExecution]) -> HostLoad:
        """`had` are the rows that were begun there last."""
        there = [execution for execution in had if execution.is_running]
        started = tuple(
            StartedRow(self._waiting_row(execution), time.monotonic() - execution.started_at) for execution in there
        )
        if session.executor.has_scheduler:
            up, speed = session.executor.is_up, session.speed
            return HostLoad(session.name, _UNLIMITED, _UNLIMITED, up=up, started=started, speed=speed, queues=True)
        assert session.facts is not None
        ours = sum(execution.row.needed_gpus for execution in there)
        return HostLoad(
            name=session.name,
            gpus=session.facts.gpus,
            slots=self._slots,
            held=max(0, len(session.locked_gpus) - ours),
            up=session.executor.is_up or len(self._sessions) == 1,  # with one host, rows wait for it where they are
            images=session.images,
            has_code=bool(had),
            started=started,
            speed=session.speed,
        )


def row_progress(executions: Sequence[RowExecution]) -> list[RowProgress]:
    """A lane for each row, in their order."""
    return [_row_progress(execution) for execution in executions]


def host_progress(sessions: Sequence[HostSession], executions: Sequence[RowExecution]) -> list[HostProgress]:
    """A lane for each host."""
    ours = dict.fromkeys((session.name for session in sessions), 0)
    for execution in executions:
        if execution.is_running and execution.session is not None:
            ours[execution.session.name] += execution.row.needed_gpus
    return [_host_progress(session, ours[session.name]) for session in sessions]


def _row_progress(execution: RowExecution) -> RowProgress:
    name, gpus, first = execution.row.row, execution.row.needed_gpus, not execution.expected.from_history
    if execution.record is not None:
        record = execution.record
        return RowProgress(
            name,
            record.status,
            record.timings.seconds,
            record.reason,
            host=record.host or "",
            gpus=gpus,
            attempt=execution.attempt,
        )
    if execution.prepared is None or execution.session is None:
        return RowProgress(
            name, WAITING, None, execution.wait_reason, gpus=gpus, attempt=execution.attempt, first_run=first
        )
    seconds = time.monotonic() - execution.started_at
    note = execution.session.executor.poll(execution.prepared).note
    return running_row_progress(
        name,
        execution.prepared.run,
        seconds,
        note,
        host=execution.session.name,
        gpus=gpus,
        left=None if first else execution.expected.seconds - seconds,
        first_run=first,
        attempt=execution.attempt,
    )


def _host_progress(session: HostSession, ours: int) -> HostProgress:
    facts = session.facts
    is_away = bool(session.unusable_reason) or (session.is_ready and not session.executor.is_up)
    note = session.unusable_reason or session.activity or ("the link is down" if is_away else "")
    return HostProgress(
        session.name,
        None if facts is None or session.executor.has_scheduler else facts.gpus,
        held=max(0, len(session.locked_gpus) - ours),
        up=not is_away,
        note=note,
    )
