"""GPU locks that the runner itself takes, for suites without a lock script; held until the job and its container are
gone.

The lowest free GPUs that are there and that nobody uses, all or none, and after a while in a turn (turn.py). Every
attempt is made in the turn, so that a run that collects is not robbed by one of ours that came later.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Dict, List, Optional

from . import situation
from .fence import Looking
from .request import Request
from .turn import Pace, Turn

# The ids as the job's script cannot change them: the container adapter passes them on as CUDA_VISIBLE_DEVICES.
ENV_GPU_IDS = "CI_TASKS_GPU_IDS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Claim:
    """Call `tick` until `gpu_ids` are there; `close` lets go of them."""

    def __init__(
        self, request: Request, looking: Looking, pace: Pace = Pace(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.gpu_ids: Optional[List[int]] = None
        self.waiting: List[str] = []
        self._request, self._looking, self._pace, self._clock = request, looking, pace, clock
        self._turn = Turn(request, pace, clock)
        self._begun = clock()
        self._told_at: Optional[float] = None

    @property
    def environ(self) -> Dict[str, str]:
        """What the job has to know."""
        shown = ",".join(map(str, self.gpu_ids or []))
        return {_VISIBLE: shown, ENV_GPU_IDS: shown}

    @property
    def descriptors(self) -> List[int]:
        """For the job to inherit: its GPUs stay locked while it lives, also where its runner is killed."""
        return list(self._turn.collected.values())

    def tick(self) -> None:
        sight = self._looking.latest
        if self.gpu_ids is not None or sight is None or sight.problem:
            return
        fit = situation.fit(self._request, sight)
        if self._turn.take():
            self._turn.let_go(set(self._turn.collected) - set(fit))
            if self._turn.collect(fit):
                self._finish()
                return
            if self._clock() < self._begun + self._pace.turn_after:
                self._turn.leave()
        now = self._clock()
        if self._told_at is None or now >= self._told_at + self._pace.refresh:
            self._told_at = now
            self.waiting = situation.sentences(self._request, sight, self._turn.collected)
            self.waiting += filter(None, [situation.collector(self._request), self._looking.problem])

    def close(self) -> None:
        self._turn.leave()

    def _finish(self) -> None:
        self.gpu_ids, self.waiting = sorted(self._turn.collected), []
        self._turn.pass_on()


def visible_devices() -> Dict[str, str]:
    """What the runner decided about a job's GPUs, for its container: read in the job's own environment."""
    return {_VISIBLE: os.environ[ENV_GPU_IDS]} if ENV_GPU_IDS in os.environ else {}
