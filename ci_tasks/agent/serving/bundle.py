"""The small files and artifacts of a run on their way from its host to the client.

For each file: the length of a header, the header, which is JSON with its path and size, and its bytes; a length of 0 is
the end. No archive format, since all that one can hold beside plain files (links, devices, holes, extended headers) is
what nobody may send. The client takes nothing that a host of ours would not send: `send` leaves it out and says so.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from dataclasses import field
from typing import Any, BinaryIO, Callable, Iterator, List, Sequence

from ..codec import RecordError, encode, from_json
from ..names import UnsafeName, check_relative_path
from ..quick_dataclass import dataclass
from ..records import LeftOut, LeftOutFile
from ..run_directory import SMALL_FILES, RunDir

NOT_SENT = "artifacts/not-sent.json"
MAX_FILES = 25000
MAX_BYTES = 4 << 30  # of the files of a run
MAX_SIZE = MAX_BYTES + (MAX_FILES << 13)  # of the bundle
_MAX_NAMED = 1000
_RESERVED = 1 << 26  # bytes for what NOT_SENT says
_ARTIFACTS = "artifacts"
_CHUNK = 1 << 18
_LENGTH = struct.Struct(">H")
# What the paths of a bundle may cause, as opposed to a disk that is full or broken.
_OF_PATHS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)


class BundleError(ValueError):
    """What no host of ours sends: a path that leads elsewhere, more than a run has, a bundle that breaks off."""


@dataclass(frozen=True)
class BundledFile:
    path: str
    size: int

    def __post_init__(self) -> None:
        check_relative_path(self.path)
        if self.path not in SMALL_FILES and not self.path.startswith(_ARTIFACTS + "/"):
            raise ValueError("no file of a run")
        if not 0 <= self.size <= MAX_BYTES:
            raise ValueError("a size of %d bytes" % self.size)


# -- on the host -----------------------------------------------------------------------------------------------------


def send(run_dir: str, write: Callable[[bytes], None]) -> None:
    """Write the bundle of a run. A file that is removed meanwhile is left out, one that shrinks is padded."""
    run = RunDir(run_dir)
    sender = _Sender(run.path, write)
    for name in SMALL_FILES:
        sender.add(name)
    for path in _files(run.artifacts):
        sender.add(os.path.relpath(path, run.path))
    sender.close()


def send_files(run_dir: str, names: Sequence[str], write: Callable[[bytes], None]) -> None:
    """Write a bundle of these files of a run alone."""
    sender = _Sender(RunDir(run_dir).path, write)
    for name in names:
        sender.add(name)
    sender.close()


def send_reason(why: str, write: Callable[[bytes], None]) -> None:
    """Write a bundle that only says why there is nothing in it."""
    _Sender("", write, left_out=[LeftOutFile("host", _ARTIFACTS, None, why)]).close()


def _files(top: str) -> Iterator[str]:
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            yield os.path.join(directory, name)


@dataclass
class _Sender:
    directory: str
    write: Callable[[bytes], None]
    files: int = 0
    bytes: int = 0
    left_out: List[LeftOutFile] = field(default_factory=list)
    unnamed: int = 0

    def add(self, path: str) -> None:
        try:
            handle = os.open(os.path.join(self.directory, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with os.fdopen(handle, "rb") as source:
            info = os.fstat(handle)
            if stat.S_ISREG(info.st_mode):
                self._add_plain(path, info.st_size, source)

    def _add_plain(self, path: str, size: int, source: BinaryIO) -> None:
        try:
            if self.files >= MAX_FILES - 1 or self.bytes + size > MAX_BYTES - _RESERVED:
                raise ValueError("over the limit of %d files or %d GiB" % (MAX_FILES, MAX_BYTES >> 30))
            self._send_header(BundledFile(path, size))
        except ValueError as reason:
            self._leave_out(path, size, str(reason))
            return
        left = size
        while left:
            chunk = source.read(min(left, _CHUNK)) or b"\0" * min(left, _CHUNK)
            left -= len(chunk)
            self.write(chunk)

    def _send_header(self, file: BundledFile) -> None:
        header = json.dumps(encode(file, versioned=False)).encode("ascii")
        self.files, self.bytes = self.files + 1, self.bytes + file.size
        self.write(_LENGTH.pack(len(header)) + header)

    def _leave_out(self, path: str, size: int, why: str) -> None:
        if len(self.left_out) < _MAX_NAMED:
            shown = os.fsencode(path).decode("utf-8", "backslashreplace")
            self.left_out.append(LeftOutFile("host", shown, size, why))
        else:
            self.unnamed += 1

    def close(self) -> None:
        if self.left_out:
            text = json.dumps(encode(LeftOut(tuple(self.left_out), self.unnamed)), indent=1).encode("ascii")
            self._send_header(BundledFile(NOT_SENT, len(text)))
            self.write(text)
        self.write(_LENGTH.pack(0))


# -- on the client ---------------------------------------------------------------------------------------------------


def unpack(source: Any, run_dir: str) -> List[str]:
    """Write the files of a bundle into a run directory. Returns their paths. Raises BundleError, OSError."""
    written: List[str] = []
    total, top = 0, os.path.realpath(run_dir)
    for file in _headers(source):
        total += file.size
        if len(written) >= MAX_FILES or total > MAX_BYTES:
            raise BundleError("more than %d files or %d GiB" % (MAX_FILES, MAX_BYTES >> 30))
        try:
            _write(source, file, top)
        except OSError as error:
            if error.errno in _OF_PATHS:
                raise BundleError("%s cannot be written: %s" % (ascii(file.path), error.strerror)) from None
            raise
        written.append(file.path)
    if source.read(1):
        raise BundleError("bytes after its end")
    return written


def _headers(source: Any) -> Iterator[BundledFile]:
    while True:
        (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
        if not length:
            return
        try:
            yield from_json(BundledFile, _exactly(source, length), where="artifact")
        except (RecordError, UnsafeName) as error:
            raise BundleError(str(error)) from None


def _exactly(source: Any, count: int) -> bytes:
    data: bytes = source.read(count)
    if len(data) < count:
        raise BundleError("it breaks off")
    return data


def _write(source: Any, file: BundledFile, top: str) -> None:
    directory = top
    for name in file.path.split("/")[:-1]:
        directory = os.path.join(directory, name)
        if os.path.islink(directory):
            raise BundleError("%s would be written through a link" % ascii(file.path))
        if not os.path.isdir(directory):
            os.mkdir(directory)
    path = os.path.join(top, file.path)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    with os.fdopen(handle, "wb") as out:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise BundleError("%s is no plain file here" % ascii(file.path))
        left = file.size
        while left:
            chunk = _exactly(source, min(left, _CHUNK))
            out.write(chunk)
            left -= len(chunk)
