"""What a run needs of its host before its job starts: host-wide locks, a first look at the GPUs, and GPUs.

The supervisor polls one RunResources; it never blocks.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Dict, Iterator, List, Optional, Union

from ..quick_dataclass import dataclass
from ..records import Phase, Plan
from . import availability, lock_files, nvidia_smi
from .claim import GpuClaim
from .fence import Fence
from .host_locks import HostLocks
from .request import AGENT, GpuRequest
from .reservation import GpuSnapshotSource, LockTimings


class ResourcesUnavailable(Exception):
    """The run is not possible on this host; the message says why."""


class RunResources:
    """Call `poll` at `next_poll_at`, `read_output` with the job's output, `close` at the end.

    `are_ready`: the job may start. `waiting`: what is missing and who holds it. `gpu_ids`: the job's GPUs, once known.
    """

    def __init__(self, plan: Plan, run_dir: str, timings: LockTimings = LockTimings()) -> None:
        self.are_ready = False
        self.next_poll_at = -math.inf
        self._plan, self._run_dir, self._timings = plan, run_dir, timings
        self._host_locks = HostLocks(())
        self._monitor: Optional[nvidia_smi.GpuMonitor] = None
        self._gpus: Optional[Union[GpuClaim, Fence]] = None
        self._reasons: List[str] = []
        self._steps = self._acquire()

    @property
    def waiting(self) -> List[str]:
        if self.are_ready:
            return self._gpus.waiting if isinstance(self._gpus, Fence) else []
        return self._reasons

    @property
    def phase(self) -> Phase:
        if self.waiting:
            return "waiting"
        return "running" if self.are_ready else "starting"

    @property
    def gpu_ids(self) -> Optional[List[int]]:
        return self._gpus.gpu_ids if self._gpus is not None else None

    @property
    def gpu_uuids(self) -> List[str]:
        """The UUIDs of `gpu_ids`; none of simulated GPUs, or without nvidia-smi."""
        snapshot = self._monitor.latest if self._monitor is not None else None
        return [gpu.uuid for gpu in snapshot.gpus if gpu.index in (self.gpu_ids or ())] if snapshot is not None else []

    @property
    def environ(self) -> Dict[str, str]:
        """Variables for the job, on top of its environment."""
        return self._gpus.environ if isinstance(self._gpus, GpuClaim) else {}

    @property
    def descriptors(self) -> List[int]:
        """The locks that last as long as the job does."""
        return self._host_locks.descriptors + (self._gpus.descriptors if isinstance(self._gpus, GpuClaim) else [])

    def poll(self) -> None:
        """Raises ResourcesUnavailable where the job cannot start; once it has started, nothing here ends it."""
        if time.monotonic() < self.next_poll_at:
            return
        try:
            if not self.are_ready:
                self.are_ready = next(self._steps, True)
            elif isinstance(self._gpus, Fence):
                self._gpus.poll()
        except (lock_files.LockError, OSError) as error:
            if not self.are_ready:
                raise ResourcesUnavailable(str(error)) from None
        self._schedule()

    def read_output(self, chunk: bytes) -> None:
        """What the job wrote: its lock script says there which GPUs it has."""
        if isinstance(self._gpus, Fence) and not self._gpus.is_done:
            self._gpus.read_output(chunk)
            if self._gpus.is_done:
                self._schedule()

    def stop_waiting(self) -> None:
        """The job is about to be stopped: reserve no more GPUs for it, and leave none of its processes paused."""
        if isinstance(self._gpus, Fence):
            self._gpus.close()
            self._gpus, self.next_poll_at = None, math.inf

    def close(self) -> None:
        """Release everything, whichever process has inherited it."""
        if self._monitor is not None:
            self._monitor.close()
        if self._gpus is not None:
            self._gpus.close()
        self._host_locks.close()
        self.are_ready, self.next_poll_at = True, math.inf

    def _schedule(self) -> None:
        is_over = self.are_ready and (not isinstance(self._gpus, Fence) or self._gpus.is_done)
        self.next_poll_at = math.inf if is_over else time.monotonic() + self._timings.poll
        if is_over and self._monitor is not None:
            self._monitor.close()

    def _acquire(self) -> Iterator[bool]:
        """Yields False as long as something is missing."""
        request = self._plan.gpu_locks
        directory = request.directory if request is not None and request.simulated is not None else None
        self._host_locks = HostLocks(self._plan.exclusive, directory)
        yield from self._wait_for(self._host_locks)
        if request is None or not request.count:
            return
        if request.reserve_after is not None:
            self._timings = dataclasses.replace(self._timings, reserve_after=request.reserve_after)
        source: GpuSnapshotSource
        if request.simulated is not None:
            source = _FixedSource(nvidia_smi.simulated_gpus(request.simulated))
        else:
            source = self._monitor = nvidia_smi.GpuMonitor(self._timings.refresh)
            self._monitor.start()
        while source.latest is None:
            yield False
        if source.latest.problem == nvidia_smi.NO_PROGRAM and request.declared is not None:
            source = _FixedSource(nvidia_smi.simulated_gpus(request.declared))  # which are in use is unknown here
        assert source.latest is not None
        yield from self._wait_for_gpus(request, source, source.latest)

    def _wait_for_gpus(
        self, request: GpuRequest, source: GpuSnapshotSource, first: nvidia_smi.GpuSnapshot
    ) -> Iterator[bool]:
        problem = availability.unmet_requirement(request, first)
        if problem:
            raise ResourcesUnavailable(problem)
        if request.by == AGENT:
            lock_files.create_missing([request.path(gpu) for gpu in first.ids])
            self._gpus = GpuClaim(request, source, self._timings)
            yield from self._wait_for(self._gpus)
            return
        if not self._plan.has_container_daemon:  # a container's lock script is root
            lock_files.check_writable(list(request.paths().values()))
        if len(availability.usable_gpus(request, first)) < request.total:
            lock_files.create_missing(list(request.paths().values()))
        self._gpus = Fence(request, self._run_dir, source, self._timings)
        self._gpus.poll()  # it stands before the job starts

    def _wait_for(self, locks: Union[HostLocks, GpuClaim]) -> Iterator[bool]:
        locks.poll()
        while not locks.is_done:
            self._reasons = locks.waiting
            yield False
            locks.poll()
        self._reasons = []


@dataclass
class _FixedSource:
    """GPUs that no program shows."""

    latest: Optional[nvidia_smi.GpuSnapshot]
    problem: str = ""
