"""A lock file that one caller at a time holds, whoever they are: of this process, another, or another person's."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from typing import Callable, Iterator

from .transfer import Stopped

_EVERY = 0.5  # seconds between two words that it waits
_GLANCE = 0.05
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def alone(path: str, stop: threading.Event, waits: Callable[[], None]) -> Iterator[None]:
    """Nobody else has the lock file meanwhile. It may be removed by whoever had it: then it is made again."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = -1
    told = 0.0
    try:
        while handle < 0:
            handle = _try(path)
            if handle < 0:
                if time.monotonic() - told > _EVERY:
                    told = time.monotonic()
                    waits()
                if stop.wait(_GLANCE):
                    raise Stopped
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _try(path: str) -> int:
    """The handle of a lock that is ours, or -1. Another's file may be read-only for us, which is enough."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except OSError as error:
        if error.errno in _NO_LOCKS:  # a file system without locks: files are put in place whole all the same
            return handle
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
            os.close(handle)
            raise
    os.close(handle)
    return -1
