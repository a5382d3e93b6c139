"""Fairness: how a run that needs many GPUs gets them although others, who need fewer, take each one that comes free.

CI's lock script takes all GPUs that it needs or none, and sleeps at random in between. Eight GPUs are hardly ever free
at one moment while others come and go with four, so a run that needs eight may starve. Therefore a run of ours that has
waited for a while takes the host's one *reservation lock* (beside the GPUs' locks) and keeps every GPU lock that comes
free, until it has enough. Then the agent has its GPUs; or, where the job's own script takes them, the fence releases
all of them at once, just when the script tries (pause_lock_script.py). Where it cannot arrange that, another script may
be quicker: each of n waiting scripts is first with a chance of about 1/n. So the reservation continues until the job
has its locks. Meanwhile no other agent takes a GPU, however few it needs. GPUs idle while they are reserved; that is
the price.

Why there is no deadlock:
- Only the holder of the reservation lock waits while it holds GPU locks; all others hold what they work with, or
  nothing. There is one such lock on a host, so no two runs can each hold what the other needs.
- Locks are taken in one order: the named ones of host_locks.py first, by name, then the reservation lock, then GPUs.
  Nobody who has GPUs waits for a named lock or the reservation lock.
- All these locks are flocks: they end with their holder, however it ends.
- The fences of several runs hold missing and occupied GPUs with *shared* locks. They do not wait for each other, and
  when one of them ends there is no gap in which a script could take a GPU that does not exist: while any of them is
  left, the script's exclusive lock is refused.
- CI's script also has `--devices`, which no row of CI uses: it takes given GPUs one by one and keeps those while it
  waits for others. It and a reservation could wait for each other. So a reservation that gained nothing for an hour
  releases everything, for longer than the script sleeps, before it starts again.
"""

from __future__ import annotations

import time
from typing import Callable, Container, Dict, Iterable, List, Optional, Protocol

from ..quick_dataclass import dataclass
from . import availability, lock_files
from .nvidia_smi import GpuSnapshot
from .request import GpuRequest


@dataclass(frozen=True)
class LockTimings:
    """Seconds: `poll` between two looks at the locks, `refresh` at the GPUs; `reserve_after` of waiting before a
    reservation; `sleep` in which the lock script has tried again for certain (it sleeps up to 5); `stalled` without any
    gain until a reservation is given up for a while."""

    poll: float = 0.05
    refresh: float = 2.0
    reserve_after: float = 60.0
    sleep: float = 6.0
    stalled: float = 3600.0


class GpuReservation:
    """The host's reservation lock, and the GPU locks that were taken under it: `gpus` is {GPU id: descriptor}."""

    def __init__(self, request: GpuRequest, timings: LockTimings, clock: Callable[[], float] = time.monotonic) -> None:
        self.gpus: Dict[int, int] = {}
        self._request, self._timings, self._clock = request, timings, clock
        self._lock: Optional[int] = None
        self._gained_at = self._paused_until = clock()

    @property
    def is_active(self) -> bool:
        return self._lock is not None

    def start(self) -> bool:
        """Take the reservation lock if it is free. Returns whether this run holds it."""
        if self._lock is None and self._clock() >= self._paused_until:
            self._lock = lock_files.try_lock(self._request.reservation_lock, own=True)
            self._gained_at = self._clock()
        return self.is_active

    def add(self, usable: Iterable[int]) -> bool:
        """Lock those of the `usable` GPUs that are free, the lowest first. Returns whether there are enough now."""
        for gpu in sorted(set(usable) - set(self.gpus)):
            if len(self.gpus) == self._request.count:
                break
            descriptor = lock_files.try_lock(self._request.path(gpu))
            if descriptor is not None:
                self.gpus[gpu] = descriptor
                self._gained_at = self._clock()
        if len(self.gpus) == self._request.count:
            return True
        if self.gpus and self._clock() >= self._gained_at + self._timings.stalled:
            self.close()
            self._paused_until = self._clock() + self._timings.sleep
        return False

    def release(self, gpus: Iterable[int]) -> None:
        """Release these GPUs; the reservation continues."""
        for gpu in list(gpus):
            lock_files.release(self.gpus.pop(gpu))

    def end(self) -> None:
        """Release the reservation lock; the GPUs stay locked."""
        if self._lock is not None:
            lock_files.release(self._lock)
            self._lock = None

    def close(self) -> None:
        """Release everything."""
        self.release(self.gpus)
        self.end()


class GpuSnapshotSource(Protocol):
    """The newest snapshot of the GPUs; see nvidia_smi.GpuMonitor."""

    latest: Optional[GpuSnapshot]
    problem: str


class GpuWaiter:
    """What a claim and a fence have in common. `gpu_ids` are the job's GPUs once it has them, `waiting` the reasons why
    it has not."""

    def __init__(
        self,
        request: GpuRequest,
        source: GpuSnapshotSource,
        timings: LockTimings = LockTimings(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gpu_ids: Optional[List[int]] = None
        self.waiting: List[str] = []
        self.request, self.source, self.timings, self.clock = request, source, timings, clock
        self.reservation = GpuReservation(request, timings, clock)
        self.created_at = clock()
        self._described_at: Optional[float] = None

    @property
    def is_done(self) -> bool:
        """Whether the job has its GPUs."""
        return self.gpu_ids is not None

    def update_waiting(self, snapshot: GpuSnapshot, own: Container[int], more: Iterable[str]) -> None:
        """Describe what keeps the request from being met; not more often than every `refresh` seconds."""
        now = self.clock()
        if self._described_at is not None and now < self._described_at + self.timings.refresh:
            return
        self._described_at = now
        self.waiting = availability.wait_reasons(self.request, snapshot, own)
        if self.reservation.is_active:
            self.waiting.append("reserving GPUs: %d of %d so far" % (len(self.reservation.gpus), self.request.count))
        else:
            self.waiting += availability.other_reservation(self.request)
        self.waiting += filter(None, more)
