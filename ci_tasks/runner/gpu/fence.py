"""The fence of one run whose own script takes the GPU locks: keeps it off GPUs that it must not have.

The script believes in a fixed number of GPUs and never looks at one. So its runner holds, with shared locks (turn.py
says why), the locks of GPUs that do not exist here and of those that processes use without a lock, until the job has
its own. A GPU whose lock somebody holds is none of the fence's business, the job's own among them: what the job uses is
locked by then. A lock on a free GPU is never kept, except in a turn.

That the job has its locks is seen in /proc/locks, where its processes can be told by their mark (those of another
user's container cannot), or read in the log: the script says so. It also says there that it waits, and only then a turn
is taken: a job that still pulls its image is not to keep GPUs from others. Where none of this can be seen the fence
stays up, which harms nobody: it keeps only what no job should take.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from typing import Callable, Dict, List, Optional, Protocol, Set

from .. import layout
from . import holders, locks, situation
from .gpus import Sight
from .request import Request
from .still import Still
from .turn import Pace, Turn

# The words of the checkout's lock script. Whatever else it says, it says while it waits.
_SCRIPT = b"[gpu_lock_exec] "
_ACQUIRED = re.compile(rb"^\[gpu_lock_exec\] Acquired GPUs: (\d+(?:,\d+)*)\s*$")
_LONGEST = 4096  # bytes of a line that are kept until its end comes


class Looking(Protocol):
    """What the last look at the GPUs showed; see gpus.Watch."""

    latest: Optional[Sight]
    problem: str


class Fence:
    """Call `tick` often and `hear` with what the job writes; `close` at the end."""

    def __init__(
        self,
        request: Request,
        run_dir: str,
        looking: Looking,
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gpu_ids: Optional[List[int]] = None
        self.waiting: List[str] = []
        self.trouble = ""
        self._closed = False
        self._request, self._looking, self._pace, self._clock = request, looking, pace, clock
        self._mark = layout.mark(run_dir)
        self._fenced: Dict[int, int] = {}
        self._turn = Turn(request, pace, clock)
        self._waits_since: Optional[float] = None
        self._script = Still(run_dir)
        self._enough_since: Optional[float] = None
        self._handed_at: Optional[float] = None
        self._handed: List[int] = []
        self._suspects: Set[int] = set()
        self._told_at: Optional[float] = None
        self._line = b""

    @property
    def done(self) -> bool:
        return self.gpu_ids is not None

    @property
    def fenced(self) -> List[int]:
        """The GPUs that the job is kept off."""
        return sorted(self._fenced)

    def tick(self) -> None:
        sight = self._looking.latest
        if self._closed or sight is None or sight.problem:
            return
        held = locks.holders(self._request.paths())
        got = self._of_job(held)
        if len(got) >= self._request.count:
            self._finish(got)
            return
        try:
            fit = situation.fit(self._request, sight)
            self._keep_off(set(range(self._request.total)) - set(fit))
            self._take_turn(fit, held)
            self.trouble = self._looking.problem
        except locks.LockError as error:
            self.trouble = str(error)
        self._tell(sight)

    def hear(self, chunk: bytes) -> None:
        """What the job wrote, as it came."""
        if self.done:
            return
        whole, _, self._line = (self._line + chunk).rpartition(b"\n")
        self._line = self._line[:_LONGEST]
        for line in whole.split(b"\n") if _SCRIPT in whole else ():
            if not line.startswith(_SCRIPT):
                continue
            acquired = _ACQUIRED.match(line)
            if acquired is None:
                self._waits_since = self._clock() if self._waits_since is None else self._waits_since
                continue
            got = [int(gpu) for gpu in acquired[1].split(b",")]
            # A test may print such a line as well; what we hold the job cannot have.
            if not any(gpu in self._fenced or gpu in self._turn.collected for gpu in got):
                self._finish(got)
                return

    def close(self) -> None:
        """Let go of everything, for good."""
        self._closed = True
        self._turn.leave()
        self._script.go_on()
        while self._fenced:
            locks.release(self._fenced.popitem()[1])
        self.waiting = []

    def _finish(self, got: List[int]) -> None:
        self.gpu_ids = sorted(got)
        self.close()

    def _of_job(self, held: Dict[int, List[locks.Held]]) -> List[int]:
        """The GPUs whose locks the job's own processes have."""
        pids = {lock.pid for found in held.values() for lock in found if not lock.shared} - {os.getpid()}
        ours = {pid for pid in pids if holders.run_of(pid) == self._mark}
        return [gpu for gpu, found in held.items() if any(lock.pid in ours for lock in found)]

    def _keep_off(self, unfit: Set[int]) -> None:
        for gpu in [gpu for gpu in self._fenced if gpu not in unfit]:
            locks.release(self._fenced.pop(gpu))
        for gpu in sorted(unfit - set(self._fenced)):
            collected = self._turn.collected.pop(gpu, None)
            descriptor = _share(collected) if collected else locks.try_lock(self._request.path(gpu), shared=True)
            if descriptor is not None:
                self._fenced[gpu] = descriptor

    def _take_turn(self, fit: List[int], held: Dict[int, List[locks.Held]]) -> None:
        now = self._clock()
        if self._waits_since is None or now < self._waits_since + self._pace.turn_after or not self._turn.take():
            return
        if self._handed_at is not None and now < self._handed_at + self._pace.sleep and not self._overtaken(held):
            return
        self._handed_at, self._suspects = None, set()
        if self._turn.collect(fit):
            self._hand_over()
        else:
            self._script.go_on()
            self._enough_since = None

    def _hand_over(self) -> None:
        """Let go of what was collected when the script tries next, as far as that can be known."""
        now = self._clock()
        self._enough_since = now if self._enough_since is None else self._enough_since
        if self._script.hold() and now < self._enough_since + self._pace.sleep:
            return
        self._handed, self._handed_at, self._enough_since = self._turn.let_go(), self._clock(), None
        self._script.go_on()

    def _overtaken(self, held: Dict[int, List[locks.Held]]) -> bool:
        """Whether another took of what was meant for our job. Seen twice, since the script takes them one by one."""
        pids = [lock.pid for gpu, found in held.items() for lock in found if gpu in self._handed and not lock.shared]
        others = {pid for pid in pids if self._is_other(pid, pids.count(pid))}
        again, self._suspects = bool(others & self._suspects), others
        return again

    def _is_other(self, pid: int, taken: int) -> bool:
        run = holders.run_of(pid)
        return taken != self._request.count if run is None else run != self._mark

    def _tell(self, sight: Sight) -> None:
        if self._waits_since is None:
            return
        now = self._clock()
        if self._told_at is not None and now < self._told_at + self._pace.refresh:
            return
        self._told_at = now
        self.waiting = situation.sentences(self._request, sight, {*self._fenced, *self._turn.collected})
        if self._turn.is_ours:
            self.waiting.append("collecting: %d of %d so far" % (len(self._turn.collected), self._request.count))
        else:
            self.waiting += filter(None, [situation.collector(self._request)])
        self.waiting += filter(None, [self.trouble])


def _share(descriptor: int) -> Optional[int]:
    """Our exclusive lock as a shared one. The kernel may give it to somebody else in between."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
