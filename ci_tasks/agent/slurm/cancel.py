"""Ending a run that is a Slurm job: its agent first, then Slurm. Requests that come together share one scancel.

The agent gets a signal to the batch script alone, which it has become: so it ends its job in order, collects artifacts,
and writes how the run ended.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Callable, Dict, List, Mapping

from .. import run_directory
from ..file_lock import LockTimeout, file_lock
from ..host_queries import ask
from ..records import SlurmJob, Status
from . import job_file, states
from .outcome import JobOutcome, is_final
from .record_end import record_job_end, record_outcome
from .squeue import TIMEOUT, SqueuePoller
from .states import SlurmJobState

NEVER_SUBMITTED = "cancelled before it was submitted to Slurm"
_ORDERLY_END = 90.0  # seconds, beside the plan's patience, that an agent gets to end in order
_BATCH_SECONDS = 0.1  # in which requests are joined
_INTERVAL = 0.5
_LOCK_TIMEOUT = 200.0


class ScancelError(Exception):
    """Slurm does not end the job; the message says why."""


def cancel(run_dir: str, job: SlurmJob, timeout: float) -> None:
    """Returns when the run has ended, or Slurm was asked to end it. Raises ScancelError."""
    job = _cancel_submission(run_dir, job)
    before = _status(run_dir)
    if not job.id:
        return
    if is_final(before):  # the job is over, or about to be, or has written that itself
        _KILL.call(job.id)
        return
    if not _TERMINATE.call(job.id):
        _record_cancelled(run_dir, job)
        return
    until = time.monotonic() + timeout + _ORDERLY_END
    while not _has_ended(run_dir, before) and time.monotonic() < until:
        time.sleep(_INTERVAL)
    if not _has_ended(run_dir, before):
        _KILL.call(job.id)


def kill(run_dir: str, job: SlurmJob) -> None:
    """End the job at once. Raises ScancelError."""
    job = _cancel_submission(run_dir, job)
    if job.id:
        _KILL.call(job.id)
        _record_cancelled(run_dir, job)


def end_before_removal(run_dir: str, seconds: float = 60.0) -> None:
    """Returns when the run's job is over, as far as Slurm can say in that time, so that the run can be removed."""
    job = job_file.read(run_dir)
    if job is not None and not _status(run_dir).concluded:
        _kill_and_wait(run_dir, job, seconds)


def _kill_and_wait(run_dir: str, job: SlurmJob, seconds: float) -> None:
    try:
        kill(run_dir, job)
    except ScancelError:
        return
    until = time.monotonic() + seconds
    queue = SqueuePoller()
    while job.id and time.monotonic() < until:
        state = queue.query([job.id]).get(job.id)
        if state is None or state.is_over:
            return
        time.sleep(_INTERVAL)


def _cancel_submission(run_dir: str, job: SlurmJob) -> SlurmJob:
    """A run that was not submitted yet ends here. Returns its current job."""
    if job.id:
        return job
    try:
        with file_lock(job.lock, True, _LOCK_TIMEOUT):
            current = job_file.read(run_dir) or job
            if not current.id:
                record_outcome(run_dir, JobOutcome(run_directory.END_CANCELLED, NEVER_SUBMITTED))
            return current
    except LockTimeout:
        raise ScancelError("its submission takes too long") from None


def _record_cancelled(run_dir: str, job: SlurmJob) -> None:
    """A job that is cancelled while it waits has no agent that writes its end. A job that was requeued waits too, and
    has the end of an agent that ran before."""
    status = _status(run_dir)
    if is_final(status) or (status.has_agent and not status.has_ended) or _MAY_RUN.call(job.id):
        return
    state = SqueuePoller().query([job.id]).get(job.id) if status.has_ended else None
    record_job_end(run_dir, state if state is not None and state.is_over else SlurmJobState("CANCELLED"))


def _status(run_dir: str) -> Status:
    return run_directory.read_status(run_directory.RunDir(run_dir))


def _has_ended(run_dir: str, before: Status) -> bool:
    """Whether the agent has written an end. The one that stood there `before` is that of an agent before a requeue."""
    status = _status(run_dir)
    return status.has_ended and status != before


class _Batcher:
    """Calls `function` once for all jobs that come within a moment; each caller gets the result for its own."""

    def __init__(self, function: Callable[[List[str]], Mapping[str, bool]]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._pending: Dict[str, "Future[bool]"] = {}

    def call(self, job: str) -> bool:
        with self._lock:
            is_first = not self._pending
            future = self._pending.setdefault(job, Future())
        if is_first:
            time.sleep(_BATCH_SECONDS)
            with self._lock:
                batch, self._pending = self._pending, {}
            try:
                results = self._function(list(batch))
                for job_id, pending in batch.items():
                    pending.set_result(results.get(job_id, False))
            except Exception as error:  # every caller gets it
                for pending in batch.values():
                    pending.set_exception(error)
        return future.result()


def _terminate(jobs: List[str]) -> Dict[str, bool]:
    """Signal the agents of running jobs; remove the others from the queue. {job: whether its agent got a signal}"""
    states_by_job = SqueuePoller().query(jobs)
    running = [job for job in jobs if job in states_by_job and states_by_job[job].is_on_node]
    _scancel(["--batch", "--signal=TERM"], running)
    _scancel(
        [], [job for job in jobs if job not in running and not (job in states_by_job and states_by_job[job].is_over)]
    )
    return dict.fromkeys(running, True)


def _kill(jobs: List[str]) -> Dict[str, bool]:
    _scancel([], jobs)
    return {}


def _scancel(options: List[str], jobs: List[str]) -> None:
    if not jobs:
        return
    answer = ask({"": ["scancel", *options, *jobs]}, TIMEOUT)[""]
    # One of them may have ended this moment, which is as good.
    if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
        raise ScancelError(states.last_line(answer.err) or "scancel ended with %s" % answer.code)


_TERMINATE, _KILL = _Batcher(_terminate), _Batcher(_kill)
_MAY_RUN = _Batcher(lambda jobs: SqueuePoller().may_run(jobs))
