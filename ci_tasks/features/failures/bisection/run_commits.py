"""One commit on one host, as an observation; several at once, each in a thread, where ^C reaches them all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.features.failures.bisection.observations import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.records import BLOCKED as WAS_BLOCKED
from ci_tasks.records import CANCELLED, LOST, PASSED, VACUOUS, RunRecord
from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostProgress, RowProgress
from ci_tasks.report.table import duration
from ci_tasks.run.checkout_source import open_source
from ci_tasks.run.events import EventStream
from ci_tasks.run.interrupts import noticed
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest

_REMINDER = 60.0  # seconds after which a run says that it still goes on
# What varies from one run to the next in a reason that has no signature.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")

PrintLine = Callable[[str], None]


@dataclass
class InterruptCount:
    """How often runs in threads are to be interrupted; `by_person` says whether ^C was pressed at all."""

    pressed: int = 0
    by_person: Callable[[], bool] = lambda: False

    @property
    def any(self) -> bool:
        return self.pressed > 0 or self.by_person()


@dataclass(frozen=True)
class RowUnderTest:
    """What runs on every commit. `row` is the row's whole name; `signature` the failure that is looked for, if a person
    named it; `overlay` the name of the overlay whose commits are searched."""

    repo: str
    workflow: str | None
    label: str
    row: str
    config: Config
    signature: str = ""
    image: str | None = None
    events: EventStream | None = None
    probe: bool = True
    overlay: str = ""


@dataclass(frozen=True)
class CommitRun:
    """A commit to run on a host, in `image` if it names one, with the overlay's commit `overlay`. `must`: a commit
    without the row is no answer, but an error."""

    position: int
    sha: str
    host: str
    must: bool = False
    image: str = ""
    overlay: str = ""


class RunCancelled(Exception):
    """A person ended the run."""


@dataclass
class QuietView:
    """The view of a run among others: silent, but for a reminder. A thread hears of ^C only here."""

    name: str
    print_line: PrintLine
    interrupts: InterruptCount
    handled: int = 0
    printed_at: float = field(default_factory=time.monotonic)

    def print_message(self, text: str) -> None:
        self._interrupt()

    def update(
        self, lanes: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        self._interrupt()
        for lane in lanes:
            if lane.state in (RUNNING, STALLED, WAITING) and time.monotonic() - self.printed_at > _REMINDER:
                self.printed_at = time.monotonic()
                since = f" for {duration(lane.seconds)}" if lane.seconds is not None else ""
                self.print_line(f"     {self.name}: {lane.state}{since}{f': {lane.note}' if lane.note else ''}")

    def close(self) -> None:
        pass

    def _interrupt(self) -> None:
        if self.interrupts.pressed > self.handled:
            self.handled = self.interrupts.pressed
            raise KeyboardInterrupt


def run_commits(
    work: RowUnderTest,
    commit_runs: Sequence[CommitRun],
    print_line: PrintLine,
    on_result: Callable[[Observation], None],
) -> None:
    """Run them at once and give each result to `on_result` as it comes. Raises KeyboardInterrupt after ^C, when all
    have ended and what had a result by then was given out."""
    with noticed() as by_person:
        interrupts = InterruptCount(by_person=by_person)
        if len(commit_runs) == 1:  # here, where ^C needs no help
            problem = _deliver(lambda: run_commit(work, commit_runs[0], print_line, interrupts), on_result)
        else:
            problem = _run_in_parallel(work, commit_runs, print_line, on_result, interrupts)
    if by_person() or isinstance(problem, RunCancelled):  # a run may have come to its end all the same
        raise KeyboardInterrupt from None
    if problem:
        raise problem


def _run_in_parallel(
    work: RowUnderTest,
    commit_runs: Sequence[CommitRun],
    print_line: PrintLine,
    on_result: Callable[[Observation], None],
    interrupts: InterruptCount,
) -> BaseException | None:
    """Returns the first problem; what runs beside it is cancelled."""
    pool = ThreadPoolExecutor(len(commit_runs), "ci-tasks bisect")
    waiting = {pool.submit(run_commit, work, commit_run, print_line, interrupts) for commit_run in commit_runs}
    problem: BaseException | None = None
    while waiting:
        try:
            ended = {future for future in waiting if future.done()} or wait(waiting, return_when="FIRST_COMPLETED").done
        except KeyboardInterrupt:
            interrupts.pressed += 1
            print_line(f"cancelling what runs ({len(waiting)}); ^C again kills it")
            continue
        waiting -= ended
        for future in ended:
            failed = _deliver(future.result, on_result)
            problem = problem or failed
            if problem and not interrupts.pressed:
                interrupts.pressed += 1  # nobody waits for the others
    pool.shutdown()
    return problem


def _deliver(result: Callable[[], Observation], on_result: Callable[[Observation], None]) -> BaseException | None:
    """Why a run has no result."""
    try:
        on_result(result())
    except (Exception, KeyboardInterrupt) as problem:
        return problem
    return None


def run_commit(
    work: RowUnderTest, commit_run: CommitRun, print_line: PrintLine, interrupts: InterruptCount
) -> Observation:
    """What one run of a commit says. Raises RunCancelled; UsageError only where the row must be there."""
    name = f"{commit_run.image or (commit_run.overlay or commit_run.sha)[:12]} on {commit_run.host}"
    given = work.config.given
    try:
        if commit_run.overlay:
            given = given.with_overlay_at(work.overlay, commit_run.overlay)
        source = open_source(work.repo, commit_run.sha, work.workflow, given)
        image = commit_run.image or work.image
        request = RunRequest(work.label, None, commit_run.host, image=image, rows=(work.row,), probe=work.probe)
        done = execute_label(
            source,
            work.config,
            request,
            ExecutionOptions(events=work.events),
            view=QuietView(name, print_line, interrupts),
        )
    except KeyboardInterrupt:
        raise RunCancelled from None
    except Blocked as problem:
        return Observation(commit_run.position, BLOCKED, reason=problem.message, host=commit_run.host)
    except UsageError as problem:
        if commit_run.must:
            raise
        return Observation(commit_run.position, MISSING, reason=problem.message, host=commit_run.host)
    record = next((candidate for candidate in (done.records if done else []) if candidate.row == work.row), None)
    if record is None and interrupts.any:
        raise RunCancelled  # it was ended before it had a record
    if record is None:
        return Observation(commit_run.position, MISSING, reason=f"no row {work.row}", host=commit_run.host)
    return observation_of(commit_run, record, work.signature)


def observation_of(commit_run: CommitRun, record: RunRecord, target: str = "") -> Observation:
    """What a run's record says of its commit. A failure that is the environment's says nothing, unless it is `target`.

    Raises RunCancelled."""
    if record.status == CANCELLED:
        raise RunCancelled
    signature, failure_kind = signature_of(record), record.triage.kind if record.triage else ""
    verdict = record.triage.verdict if record.triage else ""
    blocked = record.status in (WAS_BLOCKED, LOST) or verdict == WAS_BLOCKED
    if record.status == PASSED:
        kind, signature, failure_kind = PASS, "", ""
    elif blocked and not (target and target in (signature, failure_kind)):
        kind, signature, failure_kind = BLOCKED, "", ""
    else:
        kind = FAIL
    return Observation(
        commit_run.position,
        kind,
        signature,
        reason=record.reason,
        run=record.id,
        host=commit_run.host,
        seconds=record.timings.seconds,
        failure_kind=failure_kind,
    )


def signature_of(record: RunRecord) -> str:
    """What tells this failure from another: triage's word for it, else the reason without what varies."""
    if record.status == VACUOUS:
        return VACUOUS
    return record.signature or _VARIES.sub("#", record.reason)
