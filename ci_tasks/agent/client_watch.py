"""Whether a client still waits for a run that is of no use without one: the install steps of rows that wait for them.

A client that waits holds the kernel's lock on a file of the run directory, which is released however it ends: the
client itself on its own machine, elsewhere its server. On a file system without locks, a run counts as watched.
"""

from __future__ import annotations

import os
import time
from typing import Optional

from .file_lock import KeptLock, is_locked
from .run_directory import RunDir

_TAKE_SECONDS = 1.0  # an agent that looks holds the lock for a moment
_FLAGS = os.O_RDWR | os.O_NOFOLLOW


class ClientWatch(KeptLock):
    """The lock of a client that waits for the run; several may. Nothing if the run goes on without a client."""

    def __init__(self, run_dir: str) -> None:
        super().__init__(RunDir(run_dir).client, _FLAGS, _TAKE_SECONDS, exclusive=False)


class ClientDeadline:
    """When an agent cancels its run: `seconds` after the last moment at which a client waited for it; None: never."""

    def __init__(self, run_dir: str, seconds: Optional[float]) -> None:
        self._run_dir, self._seconds = run_dir, seconds
        self._last_seen = time.monotonic()
        self.has_passed = False

    def poll(self) -> bool:
        """Whether it has passed just now; only once."""
        if self._seconds is None or self.has_passed:
            return False
        if _is_watched(self._run_dir):
            self._last_seen = time.monotonic()
            return False
        self.has_passed = time.monotonic() >= self._last_seen + self._seconds
        return self.has_passed


def _is_watched(run_dir: str) -> bool:
    try:
        return is_locked(RunDir(run_dir).client, _FLAGS) is not False
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
