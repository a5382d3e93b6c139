"""GPU locks that the agent takes itself, for suites without a lock script; held until the job and its container end.

It takes the lowest free GPUs that no process uses, all or none, and reserves them one by one after a while
(reservation.py). Every attempt is made under the host's reservation lock, so that a run that came later does not take
the GPUs of one that reserves.
"""

from __future__ import annotations

import os
from typing import Dict, List

from . import availability
from .reservation import GpuWaiter

# The ids under a name that the job's script does not set: the container adapter passes them as CUDA_VISIBLE_DEVICES.
ENV_GPU_IDS = "CI_TASKS_GPU_IDS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuClaim(GpuWaiter):
    """Call `poll` until it `is_done`; `close` releases the GPUs."""

    @property
    def environ(self) -> Dict[str, str]:
        """The job's variables."""
        gpus = ",".join(map(str, self.gpu_ids or []))
        return {_VISIBLE: gpus, ENV_GPU_IDS: gpus}

    @property
    def descriptors(self) -> List[int]:
        """For the job to inherit: its GPUs stay locked while it lives, also where its agent is killed."""
        return list(self.reservation.gpus.values())

    def poll(self) -> None:
        snapshot = self.source.latest
        if self.is_done or snapshot is None or snapshot.problem:
            return
        usable = availability.usable_gpus(self.request, snapshot)
        if self.reservation.start():
            self.reservation.release(set(self.reservation.gpus) - set(usable))
            if self.reservation.add(usable):
                self.gpu_ids, self.waiting = sorted(self.reservation.gpus), []
                self.reservation.end()
                return
            if self.clock() < self.created_at + self.timings.reserve_after:
                self.close()
        self.update_waiting(snapshot, self.reservation.gpus, [self.source.problem])

    def close(self) -> None:
        self.reservation.close()


def visible_gpus() -> Dict[str, str]:
    """The variables for the container of a job whose GPUs the agent chose, read in the job's own environment."""
    return {_VISIBLE: os.environ[ENV_GPU_IDS]} if ENV_GPU_IDS in os.environ else {}
