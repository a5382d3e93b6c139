"""Reading regular files, and replacing a file whole."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Dict, Iterator

_PIECE = 1 << 18
_pinned: Dict[str, int] = {}  # directories that are written by their descriptor


def pin(directory: str) -> None:
    """From now on this process writes below the directory that is there now, whatever a job puts in its place."""
    if directory not in _pinned:
        _pinned[directory] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def pinned(path: str) -> str:
    """`path`, by way of the descriptor of a pinned directory that it is in. Without /proc it is `path` itself."""
    for directory, descriptor in _pinned.items():
        by_descriptor = "/proc/self/fd/%d" % descriptor
        if (path + "/").startswith(directory + "/") and os.path.isdir(by_descriptor):
            return by_descriptor + path[len(directory) :]
    return path


def read_file(path: str, most: int) -> bytes:
    """The first `most` bytes of a regular file. Raises OSError."""
    with open_file(path) as source:
        return source.read(most)


def content_of(path: str, most: int = -1, *, follow_link: bool = True) -> bytes:
    """The same, without a limit where none is named; nothing where there is no such file, or it cannot be read."""
    try:
        with open_file(path, follow_link=follow_link) as source:
            return source.read(most)
    except OSError:
        return b""


def pieces_of(path: str) -> Iterator[bytes]:
    """A regular file of any size, as a stream; nothing where there is no such file, or it cannot be read."""
    try:
        with open_file(path) as source:
            yield from iter(lambda: source.read(_PIECE), b"")
    except OSError:
        return


def open_file(path: str, *, follow_link: bool = True) -> BinaryIO:
    """A regular file, to read. What a job may have put in its place is refused: a pipe would block whoever opens it, a
    device may have no end. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_link else os.O_NOFOLLOW)
    source = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        source.close()
        raise NotAFile(errno.EINVAL, "not a regular file", path)
    return source


class NotAFile(OSError):
    """A pipe, a device or the like stands where a file should."""


def replace_file(path: str, content: bytes) -> None:
    """Replace `path` whole: a reader sees the old content or the new one, never half of either."""
    import tempfile  # what only reads needs none

    path = pinned(path)
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
