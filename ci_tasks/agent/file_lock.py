"""Lock files: flock with a timeout."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # as on some network file systems


class LockTimeout(Exception):
    """Another process has held the lock for too long."""


@contextmanager
def file_lock(path: str, exclusive: bool, timeout: float) -> Iterator[None]:
    """Hold the lock file `path`, shared or alone. Raises LockTimeout after `timeout` seconds."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _wait(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, time.monotonic() + timeout, path)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, kind: int, until: float, path: str) -> None:
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= until:
            raise LockTimeout(path)
        time.sleep(0.02)
