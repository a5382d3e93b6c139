"""Ending a run that is a Slurm job: its agent first, then Slurm.

The agent gets a signal to the batch script alone, which it has become: so it ends its job in order, collects artifacts,
and writes how the run ended.
"""

from __future__ import annotations

import time
from contextlib import suppress

from .. import run_directory
from ..file_lock import LockTimeout, file_lock
from ..programs import ask
from ..records import SlurmJob, Status
from . import job_file, states
from .outcome import JobOutcome, is_final
from .record_end import record_job_end, record_outcome
from .squeue import TIMEOUT, SqueuePoller
from .states import SlurmJobState

NEVER_SUBMITTED = "cancelled before it was submitted to Slurm"
_ORDERLY_END = 90.0  # seconds, beside the plan's patience, that an agent gets to end in order
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
    state = None if is_final(before) else SqueuePoller().query([job.id]).get(job.id)
    if state is None or not state.is_on_node:  # it is over, or about to be, or waits
        kill(run_dir, job)
        return
    _scancel("--batch", "--signal=TERM", job.id)
    until = time.monotonic() + timeout + _ORDERLY_END
    while not _has_ended(run_dir, before):
        if time.monotonic() > until:
            _scancel(job.id)
            return
        time.sleep(_INTERVAL)


def kill(run_dir: str, job: SlurmJob) -> None:
    """End the job at once. Raises ScancelError."""
    job = _cancel_submission(run_dir, job)
    if job.id:
        _scancel(job.id)
        _record_cancelled(run_dir, job)


def end_before_removal(run_dir: str, seconds: float = 60.0) -> None:
    """Returns when the run's job is over, as far as Slurm can say in that time, so that the run can be removed."""
    job = job_file.read(run_dir)
    if job is None or _status(run_dir).concluded:
        return
    with suppress(ScancelError):
        kill(run_dir, job)
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
    if is_final(status) or (status.has_agent and not status.has_ended):
        return
    queue = SqueuePoller()
    state = queue.query([job.id]).get(job.id)
    if not queue.problem and (state is None or state.is_over):
        record_job_end(run_dir, state if state is not None and status.has_ended else SlurmJobState("CANCELLED"))


def _status(run_dir: str) -> Status:
    return run_directory.read_status(run_directory.RunDir(run_dir))


def _has_ended(run_dir: str, before: Status) -> bool:
    """Whether the agent has written an end. The one that stood there `before` is that of an agent before a requeue."""
    status = _status(run_dir)
    return status.has_ended and status != before


def _scancel(*words: str) -> None:
    answer = ask({"": ["scancel", *words]}, TIMEOUT)[""]
    # A job that has ended this moment is as good.
    if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
        raise ScancelError(states.last_line(answer.err) or "scancel ended with %s" % answer.code)
