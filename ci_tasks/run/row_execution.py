"""A row's way through a command: waiting, on a host, perhaps on another one after that, ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import END_CANCELLED, RunDir, read_remote, read_status
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.placement import ExpectedTime
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, VACUOUS, Attempt, RunRecord
from ci_tasks.results.runs import with_attempts
from ci_tasks.run.events import EventStream
from ci_tasks.run.host_sessions import HostSession
from ci_tasks.workflow.model import Row


@dataclass(frozen=True)
class RunPolicy:
    """What a person wants of several rows. `fail_fast`: the first failure ends the others; `retry_failed`: a failed row
    gets one more attempt; `explain`: every decision is said."""

    fail_fast: bool = False
    retry_failed: bool = False
    explain: bool = False


@dataclass(frozen=True)
class ExecutionOptions:
    """How a label's rows are run: `jobs` at once on a host, left to themselves with `detach`. `resume` goes on with the
    newest command of the label that did not finish. `events` gets what happens."""

    jobs: int | None = None
    detach: bool = False
    policy: RunPolicy = field(default_factory=RunPolicy)
    resume: bool = False
    events: EventStream | None = None


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
