"""The Slurm jobs of one connection: submits runs, and follows their states. Nothing happens before there is a job."""

from __future__ import annotations

import os
import time
from typing import Mapping, Optional

from .. import run_directory
from ..records import SlurmJob
from . import job_file
from .run_state import SlurmRunState
from .squeue import SqueuePoller
from .submit import Submitter, enqueue

_INTERVAL = 0.1


class SlurmSession:
    """The submitter and the squeue poller that all runs of a connection share."""

    def __init__(self) -> None:
        self._queue = SqueuePoller()
        self._submitter = Submitter()

    def submit(self, run_dir: str, job: SlurmJob, script: str, secrets: Mapping[str, str]) -> None:
        """Submit a run; one that already has a status is only queued again."""
        if not os.path.lexists(run_directory.RunDir(run_dir).status):
            with open(os.path.join(run_dir, job_file.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(script)
            job_file.write_secrets(run_dir, secrets)
            enqueue(run_dir, job)
        self._submitter.add(run_dir)

    def run_state(self, run_dir: str) -> Optional[SlurmRunState]:
        """None for a run that is not a Slurm job. One that a broken connection left is queued again."""
        job = job_file.read(run_dir)
        if job is None:
            return None
        if not job.id:
            self._submitter.add(run_dir)
        return SlurmRunState(run_dir, self._queue)

    def finish(self, until: float) -> None:
        """The client has disconnected: submit what is queued, if that is possible before `until`."""
        while self._submitter.is_busy and time.monotonic() < until:
            time.sleep(_INTERVAL)
