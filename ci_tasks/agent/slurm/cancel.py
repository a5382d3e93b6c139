"""Ending a run that is a Slurm job: its agent first, then Slurm.

The agent gets a signal to the batch script alone, which it has become: so it ends its job in order, collects artifacts,
and writes how the run ended.
"""

from __future__ import annotations

import time
from contextlib import suppress

from ..file_lock import LockTimeout, file_lock
from ..programs import run_program
from ..records import SlurmJob
from ..run_directory import END_CANCELLED
from . import job_file, states
from .session import TIMEOUT, may_run, query
from .states import JobOutcome, SlurmJobState, is_final

NEVER_SUBMITTED = "cancelled before it was submitted to Slurm"
_ORDERLY_END = 90.0  # seconds, beside the plan's patience, that an agent gets to end in order
_INTERVAL = 0.5
_LOCK_TIMEOUT = 200.0


class ScancelError(Exception):
    """Slurm does not end the job; the message says why."""


def cancel(run_dir: str, job: SlurmJob, timeout: float) -> None:
    """Returns when the run has ended, or Slurm was asked to end it. Raises ScancelError."""
    before = job_file.status_of(run_dir)
    state = None if is_final(before) or not job.id else query([job.id])[0].get(job.id)
    if state is None or not state.is_on_node:  # it is over, or about to be, or waits
        kill(run_dir, job)
        return
    _scancel("--batch", "--signal=TERM", job.id)
    until = time.monotonic() + timeout + _ORDERLY_END
    while time.monotonic() < until:
        status = job_file.status_of(run_dir)
        if status.has_ended and status != before:  # the end that stood there before is one before a requeue
            return
        time.sleep(_INTERVAL)
    _scancel(job.id)


def kill(run_dir: str, job: SlurmJob) -> None:
    """End the job at once; one that was not submitted yet never is. Raises ScancelError."""
    if not job.id:
        try:
            with file_lock(job.lock, True, _LOCK_TIMEOUT):
                job = job_file.read(run_dir) or job
                if not job.id:
                    job_file.record_end(run_dir, JobOutcome(END_CANCELLED, NEVER_SUBMITTED))
                    return
        except LockTimeout:
            raise ScancelError("its submission takes too long") from None
    _scancel(job.id)
    # A job that is cancelled while it waits has no agent that writes its end, or that of one before a requeue.
    status = job_file.status_of(run_dir)
    if is_final(status) or (status.has_agent and not status.has_ended):
        return
    known, problem = query([job.id])
    state = known.get(job.id, SlurmJobState("CANCELLED"))
    if state.is_over and not problem:
        job_file.record_end(run_dir, state if status.has_ended else SlurmJobState("CANCELLED"))


def end_before_removal(run_dir: str, seconds: float = 60.0) -> None:
    """Returns when the run's job is over, as far as Slurm can say in that time, so that the run can be removed."""
    job = job_file.read(run_dir)
    if job is None or job_file.status_of(run_dir).concluded:
        return
    with suppress(ScancelError):
        kill(run_dir, job)
        until = time.monotonic() + seconds
        while job.id and time.monotonic() < until and any(may_run([job.id]).values()):
            time.sleep(_INTERVAL)


def _scancel(*words: str) -> None:
    answer = run_program(["scancel", *words], TIMEOUT)
    # A job that has ended this moment is as good.
    if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
        raise ScancelError(states.last_line(answer.err) or "scancel ended with %s" % answer.code)
