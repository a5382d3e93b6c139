"""The small files and artifacts of a run on their way from its host to the client.

For each file: the length of a header, the header, which is JSON with its path and size, and its bytes; a length of 0 is
the end. No archive format, since all that one can hold beside plain files (links, devices, holes, extended headers) is
what a host may not send. `pack` leaves out what `unpack` would refuse, and says so in a file of the bundle.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from typing import Any, BinaryIO, Iterator, List, Optional, Sequence

from ..codec import RecordError, encode, from_json
from ..files import UnsafeName, check_relative_path, open_file
from ..quick_dataclass import dataclass
from ..records import LeftOut, LeftOutFile
from ..run_directory import SMALL_FILES

NOT_SENT = "artifacts/not-sent.json"
MAX_FILES = 25000
MAX_BYTES = 4 << 30  # of the files of a run
MAX_SIZE = MAX_BYTES + (MAX_FILES << 13)  # of the bundle
_MAX_NAMED = 1000
_RESERVED = 1 << 26  # bytes for NOT_SENT
_CHUNK = 1 << 18
_LENGTH = struct.Struct(">H")


class BundleError(ValueError):
    """What no host of ours sends: a path that leads elsewhere, more than a run has, a bundle that breaks off."""


@dataclass(frozen=True)
class BundledFile:
    path: str
    size: int

    def __post_init__(self) -> None:
        check_relative_path(self.path)
        if self.path not in SMALL_FILES and not self.path.startswith("artifacts/"):
            raise ValueError("no file of a run")
        if not 0 <= self.size <= MAX_BYTES:
            raise ValueError("a size of %d bytes" % self.size)


def pack(run_dir: str, names: Optional[Sequence[str]] = None, why_nothing: str = "") -> Iterator[bytes]:
    """The bundle of a run, on its host; with `names` of these files alone, or with nothing but the reason for that. A
    file that is removed meanwhile is left out, one that shrinks is padded."""
    left_out = [LeftOutFile("host", "artifacts", None, why_nothing)] if why_nothing else []
    files = total = 0
    for path in () if why_nothing else names or _paths(run_dir):
        try:
            source = open_file(os.path.join(run_dir, path), follow_link=False)
        except OSError:
            continue
        with source:
            size = os.fstat(source.fileno()).st_size
            try:
                if files >= MAX_FILES - 1 or total + size > MAX_BYTES - _RESERVED:
                    raise ValueError("over the limit of %d files or %d GiB" % (MAX_FILES, MAX_BYTES >> 30))
                yield _header(path, size)
            except ValueError as reason:
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                left_out.append(LeftOutFile("host", shown, size, str(reason)))
                continue
            files, total = files + 1, total + size
            while size:
                chunk = source.read(min(size, _CHUNK)) or b"\0" * min(size, _CHUNK)
                size -= len(chunk)
                yield chunk
    if left_out:
        named = LeftOut(tuple(left_out[:_MAX_NAMED]), len(left_out[_MAX_NAMED:]))
        text = json.dumps(encode(named), indent=1).encode("ascii")
        yield _header(NOT_SENT, len(text)) + text
    yield _LENGTH.pack(0)


def _header(path: str, size: int) -> bytes:
    text = json.dumps(encode(BundledFile(path, size), versioned=False)).encode("ascii")
    return _LENGTH.pack(len(text)) + text


def _paths(run_dir: str) -> Iterator[str]:
    yield from SMALL_FILES
    for directory, _, names in os.walk(os.path.join(run_dir, "artifacts")):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(directory, name), run_dir)


def unpack(source: Any, run_dir: str) -> List[str]:
    """Write the files of a bundle into a run directory of the client. Returns their paths. Raises BundleError,
    OSError."""
    written: List[str] = []
    total, top = 0, os.path.realpath(run_dir)
    while True:
        (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
        if not length:
            break
        try:
            file = from_json(BundledFile, _exactly(source, length), where="artifact")
        except (RecordError, UnsafeName) as error:
            raise BundleError(str(error)) from None
        total += file.size
        if len(written) >= MAX_FILES or total > MAX_BYTES:
            raise BundleError("more than %d files or %d GiB" % (MAX_FILES, MAX_BYTES >> 30))
        with _created(top, file.path) as out:
            size = file.size
            while size:
                chunk = _exactly(source, min(size, _CHUNK))
                out.write(chunk)
                size -= len(chunk)
        written.append(file.path)
    if source.read(1):
        raise BundleError("bytes after its end")
    return written


def _exactly(source: Any, count: int) -> bytes:
    data: bytes = source.read(count)
    if len(data) < count:
        raise BundleError("it breaks off")
    return data


def _created(top: str, path: str) -> BinaryIO:
    """A file below `top`, through no link."""
    directory = top
    try:
        for name in path.split("/")[:-1]:
            directory = os.path.join(directory, name)
            if os.path.islink(directory):
                raise BundleError("%s would be written through a link" % ascii(path))
            if not os.path.isdir(directory):
                os.mkdir(directory)
        # Opening a pipe would block.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        out = os.fdopen(os.open(os.path.join(top, path), flags, 0o644), "wb")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise BundleError("%s cannot be written: %s" % (ascii(path), error.strerror)) from None
    if not stat.S_ISREG(os.fstat(out.fileno()).st_mode):
        out.close()
        raise BundleError("%s is no plain file here" % ascii(path))
    return out
