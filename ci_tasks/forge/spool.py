"""Bytes that are read from their beginning as often as wanted: a file as it lies, or a stream kept on disk."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO

from ci_tasks.errors import Blocked, UsageError

MOST = 8 << 30  # bytes; no log is that long, but a stream may have no end
_CHUNK = 1 << 20


class Spool:
    """An open file. Closed, or with this process however that ends, a temporary one is gone."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def open(self) -> io.BufferedReader:
        """A reader of its own place, at the beginning."""
        return io.BufferedReader(_Window(self._file.fileno()), _CHUNK)

    def close(self) -> None:
        self._file.close()


def temporary() -> BinaryIO:
    """A file without a name, so that nobody else opens it and not even SIGKILL leaves it behind. Raises Blocked."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _no_room(error) from None


def append(file: BinaryIO, chunk: bytes) -> None:
    """Raises Blocked where the disk is full, UsageError where the log has no end."""
    if file.tell() + len(chunk) > MOST:
        raise UsageError(f"more than {MOST >> 30} GiB came in, so this is no log", hint="give the job's log alone")
    try:
        file.write(chunk)
        file.flush()  # a full disk may show only here
    except OSError as error:
        raise _no_room(error) from None


def keep(read: Callable[[int], bytes]) -> Spool:
    """A spool of what `read` gives until it gives nothing. Raises Blocked, UsageError."""
    file = temporary()
    try:
        while chunk := read(_CHUNK):
            append(file, chunk)
    except BaseException:
        file.close()
        raise
    return Spool(file)


def _no_room(error: OSError) -> Blocked:
    return Blocked(
        f"the log cannot be kept on disk while it is read: {error.strerror}",
        hint="TMPDIR names another directory for temporary files",
    )


class _Window(io.RawIOBase):
    """A file from its beginning, whatever the place of its other readers."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._at = descriptor, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}
        self._at = max((start[whence] if whence in start else os.fstat(self._descriptor).st_size) + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        got = os.preadv(self._descriptor, [buffer], self._at)
        self._at += got
        return got
