"""Turns: how a run that needs many GPUs gets them although others, who need fewer, take each one that comes free.

CI's lock script takes all that it needs or nothing, and sleeps at random in between. Eight GPUs are hardly ever free at
one moment while others come and go with four: who needs eight may wait for ever. So whoever of ours has waited for a
while takes the host's one *turn* (a lock beside the GPUs' locks) and collects: every GPU lock that comes free is kept,
until there are enough. Then the runner has its GPUs; or, where the job's own script is to take them, the fence lets go
of all of them at once, just when the script tries (still.py). Where it cannot make that so, another script may be
quicker: each of n that wait is first with a chance of about 1/n. So the turn goes on, collecting again, until the job
has its locks. While one of ours has the turn no other runner takes a GPU, however few it needs. GPUs stand idle while
they are collected; that is the price.

Why nothing gets stuck:
- Who collects waits while it holds locks; all others hold what they work with, or nothing. One turn on a host means one
  who collects, so no two of them can each have what the other lacks.
- Locks are taken in one order: the named ones of exclusive.py first, by name, then the turn, then GPUs. Nobody who has
  GPUs waits for a named lock or the turn.
- All these locks are flocks: they end with their holder, however it ends. A collector that is killed frees everything,
  and one whose job ends or is cancelled closes it.
- The fences of several runs hold absent and stolen GPUs with *shared* locks. They do not wait for each other, and no
  gap opens when one of them ends, in which a script could take a GPU that does not exist: as long as there is any of
  them, the script's exclusive lock is refused.
- CI's script also knows `--devices`, which no row of CI's uses: it takes named GPUs one by one and keeps those while it
  waits for others. It and a collector could wait for each other. So a collector that got nothing new for an hour lets
  go of everything, for longer than the script sleeps, before it begins again.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Callable, Dict, Iterable, List, Optional

from . import locks
from .request import Request


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds: between two looks at the locks, and at the GPUs; of waiting before a turn; in which the lock script has
    tried again for certain (it sleeps up to 5); without any gain before a collector lets go."""

    tick: float = 0.2
    refresh: float = 2.0
    turn_after: float = 60.0
    sleep: float = 6.0
    stuck: float = 3600.0


class Turn:
    """The host's turn, and the GPU locks that were collected in it: {GPU id: descriptor}."""

    def __init__(self, request: Request, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self.collected: Dict[int, int] = {}
        self._request, self._pace, self._clock = request, pace, clock
        self._turn: Optional[int] = None
        self._gained = self._rest_until = clock()

    @property
    def is_ours(self) -> bool:
        return self._turn is not None

    def take(self) -> bool:
        """Whether it is our turn now."""
        if self._turn is None and self._clock() >= self._rest_until:
            self._turn = locks.try_lock(self._request.turn, ours=True)
            self._gained = self._clock()
        return self.is_ours

    def collect(self, fit: Iterable[int]) -> bool:
        """Take of the GPUs `fit` what is free, the lowest first; whether there are enough now."""
        for gpu in sorted(fit):
            if len(self.collected) == self._request.count:
                break
            descriptor = None if gpu in self.collected else locks.try_lock(self._request.path(gpu))
            if descriptor is not None:
                self.collected[gpu] = descriptor
                self._gained = self._clock()
        if len(self.collected) == self._request.count:
            return True
        if self.collected and self._clock() >= self._gained + self._pace.stuck:
            self.leave()
            self._rest_until = self._clock() + self._pace.sleep
        return False

    def let_go(self, gpus: Optional[Iterable[int]] = None) -> List[int]:
        """Release these GPUs, or all that were collected; the turn stays. Returns which they were."""
        gone = [gpu for gpu in (list(self.collected) if gpus is None else gpus) if gpu in self.collected]
        for gpu in gone:
            locks.release(self.collected.pop(gpu))
        return gone

    def pass_on(self) -> None:
        """The turn ends; what was collected stays."""
        if self._turn is not None:
            locks.release(self._turn)
            self._turn = None

    def leave(self) -> None:
        """Everything ends."""
        self.let_go()
        self.pass_on()
