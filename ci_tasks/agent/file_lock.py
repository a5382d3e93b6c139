"""Locks on files and directories: flock, tried once or with a timeout."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
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
