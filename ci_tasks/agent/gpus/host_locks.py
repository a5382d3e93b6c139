"""Host-wide named locks: what two runs on one host must not do at the same time, such as Ray on the host's network.

One file each, `ci-tasks-NAME.lock`, which any user may lock. Every run takes them in the order of their names and
before any GPU, so that no two runs can wait for each other.
"""

from __future__ import annotations

import os
import re
from typing import Iterable, List, Optional

from . import lock_files, lock_holders

DIRECTORY = "/dev/shm"
ENV_DIRECTORY = "CI_TASKS_LOCK_DIR"  # for tests, which must not block real runs


class HostLocks:
    """Call `poll` until it `is_done`; `close` releases the locks."""

    def __init__(self, names: Iterable[str], directory: Optional[str] = None) -> None:
        """`directory`: where simulated GPUs have their locks, for runs that use nothing real."""
        self._directory = directory or os.environ.get(ENV_DIRECTORY) or DIRECTORY
        self._names = sorted(set(names))
        self._held: List[int] = []
        self.waiting: List[str] = []

    @property
    def is_done(self) -> bool:
        return len(self._held) == len(self._names)

    @property
    def descriptors(self) -> List[int]:
        """For the job to inherit: they stay locked while it lives, also where its agent is killed."""
        return list(self._held)

    def poll(self) -> None:
        self.waiting = []
        while not self.is_done:
            name = self._names[len(self._held)]
            path = os.path.join(self._directory, "ci-tasks-%s.lock" % re.sub(r"[^A-Za-z0-9_.-]", "_", name))
            descriptor = lock_files.try_lock(path, own=True)
            if descriptor is None:
                locks = lock_files.held_locks({0: path}).get(0)
                holder = lock_holders.describe_process(locks[0].pid) if locks else lock_holders.UNKNOWN
                self.waiting = ["%s held by %s" % (name, holder)]
                return
            self._held.append(descriptor)

    def close(self) -> None:
        while self._held:
            lock_files.release(self._held.pop())
