"""The status of a run that is a Slurm job: its agent's status, with what only Slurm knows.

Slurm's state of a waiting job is added to the status that clients see, never written to the file: once a job has
started, its agent is the only writer of its status.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Optional, Tuple

from .. import run_directory
from ..file_lock import LockTimeout
from ..records import SlurmAllocation, SlurmJob, Status
from . import job_file
from .outcome import is_final
from .record_end import record_job_end
from .squeue import SqueuePoller
from .states import UNKNOWN, SlurmJobState

_CACHE_SECONDS = 10.0  # until one node sees what another wrote last, on a file system that caches
_INTERVAL = 1.0  # seconds between two looks at slurm.json


class SlurmRunState:
    """Joins the status of one run with the state of its job."""

    def __init__(self, run_dir: str, queue: SqueuePoller) -> None:
        self._run_dir, self._queue = run_dir, queue
        self._job = job_file.read(run_dir)
        self._read_at = time.monotonic()
        self._final: Optional[Status] = None

    def join(self, status: Status) -> Tuple[Status, bool]:
        """(status, whether it is final), given the status that the agent wrote."""
        if self._final is not None:
            return self._final, True
        job = self._current_job()
        if job is None or not job.id:
            return status, status.concluded  # whoever submits it writes the status
        status = replace(status, slurm=status.slurm or SlurmAllocation(job.id))
        state = self._queue.state(job.id)
        if state is None and is_final(status) and self._queue.is_missing(job.id):
            state = SlurmJobState(UNKNOWN)  # it ended long ago
        if state is None and self._queue.problem:
            return _waiting(status, "Slurm does not answer: %s" % self._queue.problem), False
        if state is None and is_final(status):
            return _unverified(status), False
        if state is None:
            is_running = status.has_agent and not status.has_ended
            return (status if is_running else _waiting(status, "Slurm: submitted")), False
        if not state.is_over:
            return _with_state(status, state), False
        if not status.has_ended and self._queue.seconds_over(job.id) < _CACHE_SECONDS:
            return _waiting(status, state.description), False
        try:
            self._final = record_job_end(self._run_dir, state)
            return self._final, True
        except (OSError, LockTimeout):
            return status, False

    def _current_job(self) -> Optional[SlurmJob]:
        if (self._job is None or not self._job.id) and time.monotonic() > self._read_at + _INTERVAL:
            self._read_at = time.monotonic()
            self._job = job_file.read(self._run_dir)
        return self._job


def _with_state(status: Status, state: SlurmJobState) -> Status:
    """An agent's end does not count while Slurm says that the job goes on: it was interrupted, and may run again."""
    if state.is_on_node and state.state != "SUSPENDED" and status.has_agent and not status.has_ended:
        return status
    if state.is_on_node and is_final(status):
        return _unverified(status)
    return _waiting(status, state.description)


def _unverified(status: Status) -> Status:
    """Its agent, or its job, wrote an end; Slurm has yet to say how the job ended."""
    return replace(_waiting(status, ""), phase="collecting", waiting=())


def _waiting(status: Status, reason: str) -> Status:
    return replace(
        status,
        state=run_directory.STATE_RUNNING,
        phase="waiting",
        waiting=(reason,),
        end=None,
        exit_code=None,
        ended_at=None,
        log_sha256=None,
        signalled=False,
    )
