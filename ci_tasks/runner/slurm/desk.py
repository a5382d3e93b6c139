"""What one connection has to do with Slurm: it submits runs, and asks how they stand. Nothing where no run is a job."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional

from .. import layout
from . import job as jobs

_GLANCE = 0.1


class Desk:
    """Loads and asks nothing before there is a job: a host without Slurm has this too."""

    def __init__(self) -> None:
        self._queue: Any = None
        self._submitter: Any = None
        self._coming = False

    def submit(self, run_dir: str, job: jobs.Job, script: str, secrets: Mapping[str, str]) -> None:
        """Put a run in line; again, where it stands there already, or on record where it is new."""
        from . import submit

        if not os.path.lexists(layout.RunDir(run_dir).status):
            with open(os.path.join(run_dir, jobs.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(script)
            jobs.write_secrets(run_dir, secrets)
            submit.enqueue(run_dir, job)
        self._in_line(run_dir)

    @contextmanager
    def waits(self) -> Iterator[None]:
        """A run is being made, and may go with those in line."""
        self._coming = True
        try:
            yield
        finally:
            self._coming = False

    def look(self, run_dir: str) -> Optional[Any]:
        """How the run stands; None for one that is no job. One that a dead link left in line stands there again."""
        job = jobs.read(run_dir)
        if job is None:
            return None
        from .look import Look
        from .squeue import Queue

        if not job.id:
            self._in_line(run_dir)
        self._queue = self._queue or Queue()
        return Look(run_dir, self._queue)

    def finish(self, until: float) -> None:
        """The client is gone: what stands in line is still submitted, if that can be soon."""
        while self._submitter is not None and self._submitter.is_busy and time.monotonic() < until:
            time.sleep(_GLANCE)

    def _in_line(self, run_dir: str) -> None:
        from .submit import Submitter

        self._submitter = self._submitter or Submitter(is_coming=lambda: self._coming)
        self._submitter.add(run_dir)
