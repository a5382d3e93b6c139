"""The small files and artifacts of a run on their way from its host to the client: the path of each, and its bytes.

No archive format, since all that one can hold beside plain files (links, devices, holes, extended headers) is what a
host may not send. `pack` leaves out what a `Receiver` would refuse, and says so in a file of the bundle.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Iterator, List, Optional, Sequence, Tuple

from ..files import UnsafeName, check_relative_path, open_file
from ..run_directory import SMALL_FILES
from .protocol import DATA, FILE, FrameError

NOT_SENT = "artifacts/not-sent.txt"
MAX_FILES = 25000
MAX_BYTES = 4 << 30  # of the files of a run
_MAX_NAMED = 1000
_RESERVED = 1 << 26  # bytes for NOT_SENT
_CHUNK = 1 << 18


class BundleError(FrameError):
    """What no host of ours sends: a path that leads elsewhere, or more than a run has."""


def _check(path: str) -> None:
    """Raises UnsafeName, unless it is that of a file that a run brings home."""
    check_relative_path(path)
    if path not in SMALL_FILES and not path.startswith("artifacts/"):
        raise UnsafeName("no file of a run")


def pack(run_dir: str, names: Sequence[str] = (), why_nothing: str = "") -> Iterator[Tuple[bytes, bytes]]:
    """The files of a run, on its host, as kinds and payloads of frames; with `names` these alone, or nothing but the
    reason for that. A file that is removed meanwhile is left out."""
    left_out = [why_nothing] if why_nothing else []
    files = total = 0
    for path in () if why_nothing else names or _paths(run_dir):
        try:
            source = open_file(os.path.join(run_dir, path), follow_link=False)
        except OSError:
            continue
        with source:
            size = os.fstat(source.fileno()).st_size
            try:
                _check(path)
                if files >= MAX_FILES - 1 or total + size > MAX_BYTES - _RESERVED:
                    raise UnsafeName("over the limit of %d files or %d GiB" % (MAX_FILES, MAX_BYTES >> 30))
            except UnsafeName as reason:
                left_out.append("%.1000s: %s" % (ascii(path), reason))
                continue
            files, total = files + 1, total + size
            yield FILE, path.encode()
            while size > 0 and (chunk := source.read(min(size, _CHUNK))):
                size -= len(chunk)
                yield DATA, chunk
    if left_out:
        yield FILE, NOT_SENT.encode()
        yield from ((DATA, (line + "\n").encode("utf-8", "backslashreplace")) for line in left_out[:_MAX_NAMED])


def _paths(run_dir: str) -> Iterator[str]:
    yield from SMALL_FILES
    for directory, _, names in os.walk(os.path.join(run_dir, "artifacts")):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(directory, name), run_dir)


class Receiver:
    """Writes the files of a bundle below a directory of the client, through no link, at most `max_bytes`."""

    def __init__(self, directory: str, max_bytes: int = 0) -> None:
        self.paths: List[str] = []
        self._top, self._room = os.path.realpath(directory), max_bytes or MAX_BYTES
        self._out: Optional[BinaryIO] = None

    def take(self, kind: bytes, _offset: int, payload: bytes) -> None:
        """Raises BundleError, OSError."""
        if kind == FILE:
            self.close()
            try:
                path = payload.decode()
                _check(path)
            except ValueError as error:
                raise BundleError("a file %.300r: %s" % (payload, error)) from None
            self.paths.append(path)
            self._out = _created(self._top, path)
        self._room -= len(payload) if kind == DATA else 0
        if self._room < 0 or len(self.paths) > MAX_FILES:
            raise BundleError("more than %d files, or too many bytes" % MAX_FILES)
        if self._out is None:
            raise BundleError("bytes of no file")
        if kind == DATA:
            self._out.write(payload)

    def close(self) -> None:
        if self._out is not None:
            self._out.close()


def _created(top: str, path: str) -> BinaryIO:
    """A file below `top`, through no link."""
    target = os.path.join(top, path)
    directory = os.path.dirname(target)
    if os.path.realpath(directory) != directory:
        raise BundleError("%s would be written through a link" % ascii(path))
    try:
        os.makedirs(directory, exist_ok=True)
        # Opening a pipe would block.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        out = os.fdopen(os.open(target, flags, 0o644), "wb")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise BundleError("%s cannot be written: %s" % (ascii(path), error.strerror)) from None
    if not stat.S_ISREG(os.fstat(out.fileno()).st_mode):
        out.close()
        raise BundleError("%s is no plain file here" % ascii(path))
    return out
