"""What a run waits for: host-wide locks, a first look at the GPUs, and GPUs, before its job begins or while it runs.

One value that the supervisor asks again and again; it never blocks.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Dict, Iterator, List, Optional, Union

from . import gpus, locks, situation
from .claim import Claim
from .exclusive import Exclusive
from .fence import Fence, Looking
from .request import RUNNER, Request
from .turn import Pace

WAITING, STARTING, RUNNING = "waiting", "starting", "running"


class Blocked(Exception):
    """The run cannot be done here; the message says why."""


class Gate:
    """`tick` when it is `due`, `hear` the job, `close` at the end.

    `is_open`: the job may begin. `waiting`: who holds what it lacks. `gpu_ids`: what it got, as soon as that is known.
    """

    def __init__(self, plan: Dict[str, Any], run_dir: str, pace: Pace = Pace()) -> None:
        self.is_open = False
        self.due = -math.inf
        self._plan, self._run_dir, self._pace = plan, run_dir, pace
        self._exclusive = Exclusive(())
        self._watch: Optional[gpus.Watch] = None
        self._gpus: Optional[Union[Claim, Fence]] = None
        self._said: List[str] = []
        self._stages = self._all_stages()

    @property
    def waiting(self) -> List[str]:
        if self.is_open:
            return self._gpus.waiting if isinstance(self._gpus, Fence) else []
        return self._said

    @property
    def phase(self) -> str:
        if self.waiting:
            return WAITING
        return RUNNING if self.is_open else STARTING

    @property
    def gpu_ids(self) -> Optional[List[int]]:
        return self._gpus.gpu_ids if self._gpus is not None else None

    @property
    def environ(self) -> Dict[str, str]:
        """What the job gets on top of its environment."""
        return self._gpus.environ if isinstance(self._gpus, Claim) else {}

    @property
    def descriptors(self) -> List[int]:
        """The locks that last as long as the job does."""
        return self._exclusive.descriptors + (self._gpus.descriptors if isinstance(self._gpus, Claim) else [])

    def tick(self) -> None:
        """Raises Blocked where the job cannot begin; once it has begun, nothing here ends it."""
        if time.monotonic() < self.due:
            return
        try:
            if not self.is_open:
                self.is_open = next(self._stages, True)
            elif isinstance(self._gpus, Fence):
                self._gpus.tick()
        except (locks.LockError, OSError) as error:
            if not self.is_open:
                raise Blocked(str(error)) from None
        self._rest()

    def hear(self, chunk: bytes) -> None:
        if isinstance(self._gpus, Fence) and not self._gpus.done:
            self._gpus.hear(chunk)
            if self._gpus.done:
                self._rest()

    def give_up(self) -> None:
        """The job is to stop: nothing is collected for it any more, and nothing of it is held still."""
        if isinstance(self._gpus, Fence):
            self._gpus.close()
            self._gpus, self.due = None, math.inf

    def close(self) -> None:
        """Let go of everything, whoever has inherited it."""
        if self._watch is not None:
            self._watch.close()
        if self._gpus is not None:
            self._gpus.close()
        self._exclusive.close()
        self.is_open, self.due = True, math.inf

    def _rest(self) -> None:
        over = self.is_open and (not isinstance(self._gpus, Fence) or self._gpus.done)
        self.due = math.inf if over else time.monotonic() + self._pace.tick
        if over and self._watch is not None:
            self._watch.close()

    def _all_stages(self) -> Iterator[bool]:
        """False again and again until everything is there."""
        request = Request.from_plan(self._plan.get("gpu_locks"))
        pretended = request is not None and request.simulated is not None
        directory = request.directory if request is not None and pretended else None
        self._exclusive = Exclusive(self._plan.get("exclusive") or (), directory)
        yield from self._wait_exclusive()
        if request is None:
            return
        if request.turn_after is not None:
            self._pace = dataclasses.replace(self._pace, turn_after=request.turn_after)
        looking: Looking
        if request.simulated is not None:
            looking = _Pretended(request.simulated)
        else:
            looking = self._watch = gpus.Watch(self._pace.refresh)
            self._watch.start()
        while looking.latest is None:
            yield False
        if looking.latest.problem == gpus.NO_PROGRAM and request.declared is not None:
            looking = _Pretended(request.declared)  # nobody here can say which of them are in use
        assert looking.latest is not None
        yield from self._wait_gpus(request, looking, looking.latest)

    def _wait_exclusive(self) -> Iterator[bool]:
        self._exclusive.tick()
        while not self._exclusive.done:
            self._said = self._exclusive.waiting
            yield False
            self._exclusive.tick()
        self._said = []

    def _wait_gpus(self, request: Request, looking: Looking, first: gpus.Sight) -> Iterator[bool]:
        problem = situation.problem(request, first)
        if problem:
            raise Blocked(problem)
        if request.by == RUNNER:
            locks.prepare([request.path(gpu) for gpu in first.ids])
            yield from self._wait_claim(Claim(request, looking, self._pace))
            return
        if len(situation.fit(request, first)) < request.total:
            locks.prepare(list(request.paths().values()))
        self._gpus = Fence(request, self._run_dir, looking, self._pace)
        self._gpus.tick()  # up before the job begins

    def _wait_claim(self, claim: Claim) -> Iterator[bool]:
        self._gpus = claim
        claim.tick()
        while claim.gpu_ids is None:
            self._said = claim.waiting
            yield False
            claim.tick()


class _Pretended:
    problem = ""

    def __init__(self, count: int) -> None:
        self.latest: Optional[gpus.Sight] = gpus.pretended(count)
