"""Host-wide named locks: what two runs on one host must not do at the same time, such as Ray on the host's network.

One file each, `ci-tasks-NAME.lock`, which any user may lock. They are taken in the order of their names and before any
GPU, by everybody, so that no two runs can wait for each other.
"""

from __future__ import annotations

import os
import re
from typing import Iterable, List, Optional

from . import holders, locks

DIRECTORY = "/dev/shm"
ENV_DIRECTORY = "CI_TASKS_LOCK_DIR"  # for tests, which must keep nobody from working


class Exclusive:
    """Call `tick` until `done`; `close` lets go."""

    def __init__(self, names: Iterable[str], directory: Optional[str] = None) -> None:
        """`directory`: where the pretend GPUs have their locks, for runs that use nothing real."""
        self._directory = directory or os.environ.get(ENV_DIRECTORY) or DIRECTORY
        self._wanted = sorted(set(names))
        self._held: List[int] = []
        self.waiting: List[str] = []

    @property
    def done(self) -> bool:
        return len(self._held) == len(self._wanted)

    @property
    def descriptors(self) -> List[int]:
        """For the job to inherit: they stay locked while it lives, also where its runner is killed."""
        return list(self._held)

    def tick(self) -> None:
        self.waiting = []
        while not self.done:
            name = self._wanted[len(self._held)]
            descriptor = locks.try_lock(self._path(name), ours=True)
            if descriptor is None:
                self.waiting = ["%s held by %s" % (name, self._holder(name))]
                return
            self._held.append(descriptor)

    def close(self) -> None:
        while self._held:
            locks.release(self._held.pop())

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, "ci-tasks-%s.lock" % re.sub(r"[^A-Za-z0-9_.-]", "_", name))

    def _holder(self, name: str) -> str:
        held = locks.holders({0: self._path(name)}).get(0, [])
        return holders.describe(held[0].pid) if held else holders.SOMEBODY
