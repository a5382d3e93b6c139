"""The GPUs that a run needs: the `gpu_locks` object of plan.json as a frozen record. Pure."""

from __future__ import annotations

import os
from typing import Dict, Final, Literal, Optional

from ..quick_dataclass import dataclass

JOB: Final = "job"  # the checkout's own lock script takes the locks, inside the container
AGENT: Final = "agent"  # for suites without such a script
SLURM: Final = "slurm"  # the batch job has its GPUs before it starts

PATTERN = "/dev/shm/custom_gpu_lock_{gpu_id}.lock"
_GPU_ID = "{gpu_id}"


@dataclass(frozen=True)
class GpuRequest:
    """`count` GPUs, whose locks `by` takes. `total` is the number of GPUs that the lock script assumes, `simulated` the
    number of simulated ones (None: real GPUs); `declared` is the number in hosts.yaml, for a host without nvidia-smi.
    `reserve_after` are the seconds of waiting before free GPUs are reserved. With Slurm, `script` is the checkout's
    lock script, which is replaced, and `exclusive_node` keeps other jobs off the node. Raises ValueError."""

    count: int
    by: Literal["job", "agent", "slurm"] = JOB
    pattern: str = PATTERN
    total: int = 8
    simulated: Optional[int] = None
    declared: Optional[int] = None
    reserve_after: Optional[float] = None
    script: Optional[str] = None
    exclusive_node: bool = False

    def __post_init__(self) -> None:
        if _GPU_ID not in self.pattern:
            raise ValueError("pattern: %r has no %s" % (self.pattern, _GPU_ID))

    @property
    def paths(self) -> Dict[int, str]:
        """{GPU id: lock file}"""
        return {gpu: self.pattern.replace(_GPU_ID, str(gpu)) for gpu in range(self.total)}

    @property
    def directory(self) -> str:
        return os.path.dirname(self.pattern) or "."
