"""How a run that is a job of Slurm's stands, for those who watch it: what its runner says, and what only Slurm can.

What Slurm says of a job that waits is added to what is told, never written down: from the moment a job begins, its
runner is the one writer of its status.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Tuple

from .. import layout
from ..code.objects import Busy
from . import job as jobs
from .concluding import conclude
from .fate import has_begun, is_sure
from .squeue import Queue
from .states import State

_VISIBLE = 10.0  # seconds until what a node wrote last is seen on another, on a file system that caches
_EVERY = 1.0  # seconds between two looks at what is known of the job itself
_OF_THE_END = ("end", "exit_code", "ended_at", "log_sha256", "signalled")


class Look:
    """One run. `status` is to be told, when `over` for the last time."""

    def __init__(self, run_dir: str, queue: Queue, visible: float = _VISIBLE) -> None:
        self._run_dir, self._queue, self._visible = run_dir, queue, visible
        self._job = jobs.read(run_dir)
        self._looked = time.monotonic()

    def told(self, status: Dict[str, Any]) -> Tuple[Dict[str, Any], bool]:
        """(status, over), given what its runner says."""
        if is_sure(status):
            return status, True
        job = self._known()
        if job is None or not job.id:
            return status, False  # whoever submits it says how that goes
        status = {"slurm": {"job": job.id}, **status}
        state = self._queue.state(job.id)
        if state is None:
            return _waits(status, self._why_unknown()), False
        if not state.is_over:
            return _under_way(status, state), False
        if status.get("state") != layout.STATE_ENDED and self._queue.over_for(job.id) < self._visible:
            return _waits(status, state.sentence()), False
        try:
            return conclude(self._run_dir, state), True
        except (OSError, Busy):
            return status, False

    def _known(self) -> "jobs.Job | None":
        if (self._job is None or not self._job.id) and time.monotonic() > self._looked + _EVERY:
            self._looked = time.monotonic()
            self._job = jobs.read(self._run_dir)
        return self._job

    def _why_unknown(self) -> str:
        return "Slurm does not answer: %s" % self._queue.problem if self._queue.problem else "Slurm: submitted"


def _under_way(status: Dict[str, Any], state: State) -> Dict[str, Any]:
    """A runner's end is none as long as Slurm says that the job goes on: it was cut short, and may be run again."""
    ended = status.get("state") == layout.STATE_ENDED
    if state.is_on_node and state.state != "SUSPENDED" and has_begun(status) and not ended:
        return status
    return _waits(status, state.sentence())


def _waits(status: Dict[str, Any], why: str) -> Dict[str, Any]:
    if has_begun(status) and status.get("state") != layout.STATE_ENDED and why.startswith("Slurm: submitted"):
        return status
    kept = {name: value for name, value in status.items() if name not in _OF_THE_END}
    return {**kept, "state": layout.STATE_RUNNING, "phase": "waiting", "waiting": [why]}
