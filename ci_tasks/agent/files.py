"""Files: reading regular ones, replacing one whole, locks (flock, tried once or with a timeout), and names that come
from a host or a job, checked before they become paths.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from typing import BinaryIO, Iterator, Optional

_PIECE = 1 << 18


class NotAFile(OSError):
    """A pipe, a directory, a device or the like stands where a file should."""


def open_file(path: str, *, follow_link: bool = True) -> BinaryIO:
    """A regular file, to read. What a job may have put in its place is refused: a pipe would block who opens it, a
    device may have no end. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_link else os.O_NOFOLLOW)
    source = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(source).st_mode):  # before fdopen, which refuses a directory and leaves it open
        os.close(source)
        raise NotAFile(errno.EINVAL, "not a regular file", path)
    return os.fdopen(source, "rb")


def read_file(path: str, most: int) -> bytes:
    """The first `most` bytes of a regular file. Raises OSError."""
    with open_file(path) as source:
        return source.read(most)


def content_of(path: str, most: int = -1, *, follow_link: bool = True) -> bytes:
    """The same, without a limit unless one is named; empty if the file does not exist or cannot be read."""
    try:
        with open_file(path, follow_link=follow_link) as source:
            return source.read(most)
    except OSError:
        return b""


def pieces_of(path: str) -> Iterator[bytes]:
    """A regular file of any size, as a stream; empty if the file does not exist or cannot be read."""
    try:
        with open_file(path) as source:
            yield from pieces(source)
    except OSError:
        return


def pieces(source: BinaryIO) -> Iterator[bytes]:
    """The rest of an open file, as a stream."""
    return iter(lambda: source.read(_PIECE), b"")


def replace_file(path: str, content: bytes) -> None:
    """Replace `path` whole: a reader sees the old content or the new one, never half of either."""
    beside = os.path.join(os.path.dirname(path), ".%d-%d.tmp" % (os.getpid(), time.monotonic_ns()))
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def replace_any(path: str, content: bytes) -> None:
    """The same, also of a directory that a job has put there, which gets another name."""
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, unused_path(path))
    replace_file(path, content)


def unused_path(path: str) -> str:
    """`path`, or one beside it that does not exist yet."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = "%s.%d" % (path, number)
    return free


# -- locks -------------------------------------------------------------------------------------------------------------


class LockTimeout(OSError):
    """Another process has held the lock for too long."""


@contextmanager
def file_lock(path: str, exclusive: bool, timeout: float, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[None]:
    """Hold the lock file `path`, shared or alone. Raises LockTimeout after `timeout` seconds, OSError."""
    handle, until = os.open(path, flags | os.O_CLOEXEC, 0o666), time.monotonic() + timeout
    try:
        while try_lock(handle, exclusive=exclusive) is False:
            if time.monotonic() >= until:
                raise LockTimeout(errno.ETIMEDOUT, "another process holds this lock (timed out)")
            time.sleep(0.01)
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


MAX_NAME_BYTES = 255  # of every file system of Linux
MAX_PATH_BYTES = 3500  # less than the kernel's 4096: names are added to it
MAX_DEPTH = 64
_NO_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


# -- names -------------------------------------------------------------------------------------------------------------


class UnsafeName(ValueError):
    """A name that leads elsewhere, or that cannot be shown."""


def check_line(text: str, most: int) -> None:
    """Raises UnsafeName, unless it is one line of at most `most` bytes of UTF-8."""
    if len(text.encode("utf-8", "surrogatepass")) > most or _NO_LINE.search(text):
        raise UnsafeName("the name is not one line of at most %d bytes of UTF-8" % most)


def check_relative_path(path: str) -> None:
    """Raises UnsafeName, unless it stays below the directory that it is relative to."""
    check_line(path, MAX_PATH_BYTES)
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise UnsafeName("the path has more than %d parts" % MAX_DEPTH)
    for part in parts:
        if part in ("", ".", ".."):
            raise UnsafeName("the name points outside")
        check_line(part, MAX_NAME_BYTES)


def check_absolute_path(path: str) -> None:
    """Raises UnsafeName, unless it names something below `/`, in its shortest form."""
    if not path.startswith("/"):
        raise UnsafeName("the path is not absolute")
    check_relative_path(path[1:])
