"""The fence of one run whose own script takes the GPU locks: keeps it off GPUs that it must not use.

The script assumes a fixed number of GPUs and never checks them. So the agent holds, with shared locks (reservation.py
says why), the locks of GPUs that do not exist here and of those that processes use without a lock, until the job has
its own. A GPU whose lock another process holds is not fenced, the job's own among them: what the job uses is locked by
then. The lock of a free GPU is never kept, except in a reservation.

That the job has its locks is seen in /proc/locks, where its processes are recognized by their environment (those of
another user's container cannot be), or read in the log, where the script says so. The log also shows that the script
waits, and only then GPUs are reserved: a job that still pulls its image must not keep GPUs from others. Where none of
this can be seen the fence stays, which harms nobody: it only keeps what no job should take.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from typing import Callable, Dict, List, Optional, Set

from .. import run_directory
from . import availability, lock_files, lock_holders
from .pause_lock_script import LockScriptPauser
from .request import GpuRequest
from .reservation import GpuSnapshotSource, GpuWaiter, LockTimings

# The messages of the checkout's lock script. Any other than "Acquired" means that it waits.
_SCRIPT = b"[gpu_lock_exec] "
_ACQUIRED = re.compile(rb"^\[gpu_lock_exec\] Acquired GPUs: (\d+(?:,\d+)*)\s*$")
_MAX_LINE = 4096  # bytes of an unfinished line that are kept

HeldLocks = Dict[int, List[lock_files.HeldLock]]


class Fence(GpuWaiter):
    """Call `poll` often and `read_output` with what the job writes; `close` at the end."""

    def __init__(
        self,
        request: GpuRequest,
        run_dir: str,
        source: GpuSnapshotSource,
        timings: LockTimings = LockTimings(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(request, source, timings, clock)
        self.problem = ""
        self._mark = run_directory.mark(run_dir)
        self._closed = False
        self._fenced: Dict[int, int] = {}
        self._script = LockScriptPauser(run_dir)
        self._script_waits_since: Optional[float] = None
        self._complete_since: Optional[float] = None
        self._released: Set[int] = set()
        self._released_at: Optional[float] = None
        self._suspects: Set[int] = set()
        self._line = b""

    @property
    def fenced(self) -> List[int]:
        """The GPUs that the job is kept off."""
        return sorted(self._fenced)

    def poll(self) -> None:
        snapshot = self.source.latest
        if self._closed or snapshot is None or snapshot.problem:
            return
        held = lock_files.held_locks(self.request.paths())
        own = self._locked_by_job(held)
        if len(own) >= self.request.count:
            self._finish(own)
            return
        try:
            usable = availability.usable_gpus(self.request, snapshot)
            self._fence(set(range(self.request.total)) - set(usable))
            self._reserve(usable, held)
            self.problem = self.source.problem
        except lock_files.LockError as error:
            self.problem = str(error)
        if self._script_waits_since is not None:
            self.update_waiting(snapshot, {*self._fenced, *self.reservation.gpus}, [self.problem])

    def read_output(self, chunk: bytes) -> None:
        """What the job wrote, as it came."""
        if self.is_done:
            return
        lines, _, self._line = (self._line + chunk).rpartition(b"\n")
        self._line = self._line[:_MAX_LINE]
        for line in lines.split(b"\n") if _SCRIPT in lines else ():
            acquired = _ACQUIRED.match(line)
            if acquired is not None:
                gpus = [int(gpu) for gpu in acquired[1].split(b",")]
                # A test may print such a line too; the job cannot have what we hold.
                if not any(gpu in self._fenced or gpu in self.reservation.gpus for gpu in gpus):
                    self._finish(gpus)
                    return
            elif line.startswith(_SCRIPT) and self._script_waits_since is None:
                self._script_waits_since = self.clock()

    def close(self) -> None:
        """Release everything, for good."""
        self._closed = True
        self.reservation.close()
        self._script.resume()
        while self._fenced:
            lock_files.release(self._fenced.popitem()[1])
        self.waiting = []

    def _finish(self, gpus: List[int]) -> None:
        self.gpu_ids = sorted(gpus)
        self.close()

    def _locked_by_job(self, held: HeldLocks) -> List[int]:
        """The GPUs whose locks the job's own processes hold."""
        pids = {lock.pid for locks in held.values() for lock in locks if not lock.shared} - {os.getpid()}
        own = {pid for pid in pids if lock_holders.run_dir_of(pid) == self._mark}
        return [gpu for gpu, locks in held.items() if any(lock.pid in own for lock in locks)]

    def _fence(self, unusable: Set[int]) -> None:
        for gpu in set(self._fenced) - unusable:
            lock_files.release(self._fenced.pop(gpu))
        for gpu in sorted(unusable - set(self._fenced)):
            reserved = self.reservation.gpus.pop(gpu, None)
            descriptor = _share(reserved) if reserved else lock_files.try_lock(self.request.path(gpu), shared=True)
            if descriptor is not None:
                self._fenced[gpu] = descriptor

    def _reserve(self, usable: List[int], held: HeldLocks) -> None:
        now, since = self.clock(), self._script_waits_since
        if since is None or now < since + self.timings.reserve_after or not self.reservation.start():
            return
        if self._released_at is not None and now < self._released_at + self.timings.sleep and not self._overtaken(held):
            return
        self._released_at, self._suspects = None, set()
        if self.reservation.add(usable):
            self._hand_over()
        else:
            self._script.resume()
            self._complete_since = None

    def _hand_over(self) -> None:
        """Release the reserved GPUs when the script tries next, as far as that can be known."""
        now = self.clock()
        self._complete_since = now if self._complete_since is None else self._complete_since
        if self._script.pause() and now < self._complete_since + self.timings.sleep:
            return
        self._released = set(self.reservation.gpus)
        self.reservation.release(self._released)
        self._released_at, self._complete_since = self.clock(), None
        self._script.resume()

    def _overtaken(self, held: HeldLocks) -> bool:
        """Whether another process took GPUs that were released for our job. It must be seen twice, since the script
        takes its locks one by one."""
        pids = [lock.pid for gpu in self._released for lock in held.get(gpu, ()) if not lock.shared]
        others = {pid for pid in pids if self._is_other(pid, pids.count(pid))}
        again, self._suspects = bool(others & self._suspects), others
        return again

    def _is_other(self, pid: int, count: int) -> bool:
        run_dir = lock_holders.run_dir_of(pid)
        return count != self.request.count if run_dir is None else run_dir != self._mark


def _share(descriptor: int) -> Optional[int]:
    """Turn our exclusive lock into a shared one. The kernel may give it to another process in between."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
