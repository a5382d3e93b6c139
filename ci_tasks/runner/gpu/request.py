"""What a run wants of this host's GPUs: the `gpu_locks` object of plan.json as a frozen record. Pure."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Optional

JOB = "job"  # the checkout's own lock script takes the locks, inside the container
RUNNER = "runner"  # for suites without such a script

PATTERN = "/dev/shm/custom_gpu_lock_{gpu_id}.lock"
_PLACE = "{gpu_id}"
TURN = "ci-tasks-turn.lock"


@dataclasses.dataclass(frozen=True)
class Request:
    """`total` is how many GPUs the lock script believes in, `simulated` how many are pretended (None: real ones);
    `declared` is how many there are by hosts.yaml, which counts where there is no nvidia-smi to ask."""

    count: int
    by: str = JOB
    pattern: str = PATTERN
    total: int = 8
    simulated: Optional[int] = None
    declared: Optional[int] = None
    turn_after: Optional[float] = None

    @classmethod
    def from_plan(cls, value: Any) -> Optional[Request]:
        """The request in plan.json's `gpu_locks`; None where the run needs no GPU."""
        if not value or not value.get("count"):
            return None
        known = {field.name for field in dataclasses.fields(cls)}
        request = cls(**{key: item for key, item in value.items() if key in known and item is not None})
        if _PLACE not in request.pattern or request.by not in (JOB, RUNNER):
            raise ValueError("plan.json: gpu_locks: %r by %r" % (request.pattern, request.by))
        return request

    def path(self, gpu: int) -> str:
        return self.pattern.replace(_PLACE, str(gpu))

    def paths(self) -> Dict[int, str]:
        return {gpu: self.path(gpu) for gpu in range(self.total)}

    @property
    def directory(self) -> str:
        return os.path.dirname(self.pattern) or "."

    @property
    def turn(self) -> str:
        """The lock of the one waiter that collects."""
        return os.path.join(self.directory, TURN)
