"""Whether the agent of a run lives, by what its job cannot forge: the kernel's lock on the run directory.

A job may write into status.json what it likes, but cannot take away its agent's lock. So a status says how a run ended
only when the lock is free; by then the agent has written its own. On a file system without `flock` the status alone has
to do.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Optional

from . import processes, run_directory
from .file_lock import try_lock
from .records import Status

_WAIT_SECONDS = 5.0  # a process that tests the lock holds it for a moment; the agent writes its status every 2 seconds
_POLL_SECONDS = 0.05


class AgentLock:
    """The agent's own; no program that it starts inherits it."""

    def __init__(self, run_dir: str) -> None:
        self._directory: Optional[int] = None
        with suppress(OSError):
            self._directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def take(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._directory is not None and try_lock(self._directory) is False and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def is_held(run_dir: str) -> bool:
    try:
        directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return try_lock(directory, exclusive=False) is False
    finally:
        os.close(directory)


def is_alive(run: run_directory.RunDir, status: Status) -> bool:
    """Whether the agent of a run of this host lives; `status` is what its status.json says."""
    return is_held(run.path) or (not status.has_ended and processes.alive(status))
