"""Locks on files and directories: flock, tried once or with a timeout."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import Iterator, Optional


class LockTimeout(Exception):
    """Another process has held the lock for too long."""


@contextmanager
def file_lock(path: str, exclusive: bool, timeout: float) -> Iterator[None]:
    """Hold the lock file `path`, shared or alone. Raises LockTimeout after `timeout` seconds."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        until = time.monotonic() + timeout
        while try_lock(handle, exclusive=exclusive) is False:
            if time.monotonic() >= until:
                raise LockTimeout(path)
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def try_lock(handle: int, *, exclusive: bool = True) -> Optional[bool]:
    """Whether the lock is ours now, until the file is closed; None for a file system without locks. Raises OSError."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # as on some network file systems
            return None
        raise
    return True


def is_locked(path: str, flags: int, *, exclusive: bool = True) -> Optional[bool]:
    """Whether a lock that another process holds is in the way of ours; None for a file system without locks. Raises
    OSError."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        is_free = try_lock(file, exclusive=exclusive)
        return None if is_free is None else not is_free
    finally:
        os.close(file)


class KeptLock:
    """A lock that is held until `release`, or until this process ends: no program that it starts inherits it. Who looks
    whether it is free holds it for a moment, so it is tried for `seconds`. Nothing where `path` cannot be opened."""

    def __init__(self, path: str, flags: int, seconds: float, *, exclusive: bool = True) -> None:
        self._file: Optional[int] = None
        with suppress(OSError):
            self._file = os.open(path, flags | os.O_CLOEXEC)
        until = time.monotonic() + seconds
        while (
            self._file is not None and try_lock(self._file, exclusive=exclusive) is False and time.monotonic() < until
        ):
            time.sleep(0.005)

    def __enter__(self) -> KeptLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
