"""Reading regular files, and replacing a file whole."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Iterator

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
            yield from iter(lambda: source.read(_PIECE), b"")
    except OSError:
        return


def replace_file(path: str, content: bytes) -> None:
    """Replace `path` whole: a reader sees the old content or the new one, never half of either."""
    import tempfile  # what only reads needs none

    handle, beside = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def unused_path(path: str) -> str:
    """`path`, or one beside it that does not exist yet."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = "%s.%d" % (path, number)
    return free
