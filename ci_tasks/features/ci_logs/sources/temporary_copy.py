"""Copies of streams and packed logs on disk, so that a log is read several times and never held in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from ci_tasks.errors import Blocked, UsageError

MAX_LOG_BYTES = 8 << 30  # no log is that long, but a stream may be endless


def temporary_copy(chunks: Iterable[bytes], name: str) -> BinaryIO:
    """A file with the bytes of `chunks`. It has no path, so nothing is left behind even after SIGKILL.

    Raises Blocked where the disk is full, UsageError for more than `MAX_LOG_BYTES` bytes.
    """
    file = _temporary_file()
    try:
        for chunk in chunks:
            if file.tell() + len(chunk) > MAX_LOG_BYTES:
                raise too_large(name, MAX_LOG_BYTES)
            write(file, chunk)
    except BaseException:
        file.close()
        raise
    return file


def write(file: BinaryIO, chunk: bytes) -> None:
    """Raises Blocked where the disk is full."""
    try:
        file.write(chunk)
        file.flush()  # a full disk may show only here
    except OSError as error:
        raise _disk_error(error) from None


def too_large(name: str, limit: int) -> UsageError:
    return UsageError(
        f"{name!r} has more than {limit >> 20} MiB, so it is no log",
        hint="pass the failed job's log alone",
    )


def _temporary_file() -> BinaryIO:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _disk_error(error) from None


def _disk_error(error: OSError) -> Blocked:
    return Blocked(
        f"the log cannot be stored on disk while it is read: {error.strerror}",
        hint="set TMPDIR to another directory for temporary files",
    )
