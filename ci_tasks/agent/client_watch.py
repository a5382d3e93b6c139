"""Whether a client still waits for a run that is of no use without one: the install steps of rows that wait for them.

A client that waits holds the kernel's lock on a file of the run directory, which is released however it ends: the
client itself on its own machine, elsewhere its server. On a file system without locks, a run counts as watched.
"""

from __future__ import annotations

import os
import time
from typing import Optional

from .file_lock import try_lock
from .run_directory import RunDir

_TAKE_SECONDS = 1.0  # an agent that looks holds the lock for a moment
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class ClientWatch:
    """The lock of a client that waits for the run; several may. Nothing if the run goes on without a client."""

    def __init__(self, run_dir: str) -> None:
        self._file: Optional[int] = None
        try:
            self._file = os.open(RunDir(run_dir).client, _FLAGS)
        except OSError:
            return
        deadline = time.monotonic() + _TAKE_SECONDS
        while try_lock(self._file, exclusive=False) is False and time.monotonic() < deadline:
            time.sleep(0.005)

    def __enter__(self) -> ClientWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


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
        file = os.open(RunDir(run_dir).client, _FLAGS)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    try:
        return not try_lock(file)
    finally:
        os.close(file)
