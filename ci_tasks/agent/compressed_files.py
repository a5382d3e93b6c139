"""Searches compressed files and archives for secrets, also inside of each other. They cannot be masked in place: a file
that has a secret in it, or that cannot be searched to its end, does not leave the host.

gzip, bzip2, xz, zip and tar are unpacked, and zstd by a Python that can. They are known by their first bytes, a zip
also by its end. A tar is unpacked for what is compressed in it: all else in it is masked as it stands.
"""

from __future__ import annotations

import functools
import importlib
import io
from typing import Any, BinaryIO, Callable, Optional, Sequence

from .mask import Masker

MAX_UNPACKED = 1 << 28  # bytes of one file that are searched, all that is in it together
MAX_DEPTH = 8  # archives in archives; a compressed tar is two
MAX_MEMBERS = 100_000  # of one zip: Python reads the list of them into memory
FOUND = "there is a secret in it, and it is compressed"
TOO_LARGE = "compressed, and too large to be searched for secrets"
TOO_DEEP = "has archives in archives, too many to be searched for secrets"
UNREADABLE = "compressed, and cannot be searched for secrets"
STOPPED = "the agent was asked to end before it was searched for secrets"
_CHUNK = 1 << 18
_HEAD = 512  # bytes, those of a tar's first header
_MODULES = {
    b"\x1f\x8b\x08": "gzip",
    **{b"BZh%d1AY&SY" % level: "bz2" for level in range(1, 10)},
    b"\xfd7zXZ\0": "lzma",
    b"\x28\xb5\x2f\xfd": "compression.zstd",  # since Python 3.14
}
_ZIP, _ZIP_MEMBER = b"PK\x03\x04", b"PK\x01\x02"
_TAR, _TAR_AT = b"ustar", 257
# Nothing in Python reads these: lz4, 7-Zip, RAR, compress, lzip.
_OTHERS = (b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x9d", b"LZIP")


class _Unsafe(Exception):
    """The file must not leave the host; the message says why."""


class ArchiveSearch:
    """Searches one file. `bytes_searched` is what came out of it so far."""

    def __init__(
        self, values: Sequence[str], max_bytes: int = MAX_UNPACKED, stop_requested: Callable[[], bool] = lambda: False
    ) -> None:
        self.bytes_searched = 0
        self._values, self._max_bytes, self._stop_requested = values, max_bytes, stop_requested

    def why_unsafe(self, source: BinaryIO) -> Optional[str]:
        """Why the file must not leave the host; None where nothing speaks against it."""
        source.seek(0)
        unpack = self._unpacker(source.read(_HEAD))
        import zipfile

        if unpack is None and zipfile.is_zipfile(source):  # a program may stand before it
            unpack = self._zip
        source.seek(0)
        try:
            if unpack is not None:
                unpack(source, 1)
        except _Unsafe as reason:
            return str(reason)
        return None

    def _unpacker(self, head: bytes) -> Optional[_Unpacker]:
        """What unpacks a file that begins with `head`; None for one that is not packed."""
        for magic, module in _MODULES.items():
            if head.startswith(magic):
                return functools.partial(self._compressed, module)
        if head.startswith(_ZIP):
            return self._zip
        if head.startswith(_TAR, _TAR_AT):
            return self._tar
        return _refuse if head.startswith(_OTHERS) else None

    def _search(self, unpacked: Any, depth: int) -> None:
        """Search a file that came out of another one, and what is packed in it."""
        stream = self._stream(unpacked)
        unpack = self._unpacker(stream.peek(_HEAD))
        if unpack is not None:
            if depth == MAX_DEPTH:
                raise _Unsafe(TOO_DEEP)
            unpack(stream, depth + 1)
        while stream.read(_CHUNK):
            pass

    def _stream(self, unpacked: Any) -> io.BufferedReader:
        return io.BufferedReader(_SearchedStream(unpacked, self._values, self._count), _CHUNK)

    def _count(self, size: int) -> None:
        self.bytes_searched += size
        if self.bytes_searched > self._max_bytes:
            raise _Unsafe(TOO_LARGE)
        if self._stop_requested():
            raise _Unsafe(STOPPED)

    def _compressed(self, module: str, packed: Any, depth: int) -> None:
        try:
            self._search(importlib.import_module(module).open(packed), depth)
        except _Unsafe:
            raise
        except EOFError:  # cut off: nobody gets more out of it
            pass
        except Exception:  # damaged, with an exception of each module's own; or the module is missing
            raise _Unsafe(UNREADABLE) from None

    def _zip(self, packed: Any, depth: int) -> None:
        if depth > 1:  # the list of its members stands at its end
            packed = io.BytesIO(packed.read())
        if _members(packed) > MAX_MEMBERS:
            raise _Unsafe(TOO_LARGE)
        import zipfile

        try:
            with zipfile.ZipFile(packed) as archive:
                names = "\n".join(archive.namelist())
                self._stream(io.BytesIO(names.encode("utf-8", "surrogateescape"))).read()
                for member in archive.infolist():
                    with archive.open(member) as opened:
                        self._search(opened, depth)
        except _Unsafe:
            raise
        except Exception:  # damaged; or it has a password, or is packed in a way that Python does not know
            raise _Unsafe(UNREADABLE) from None

    def _tar(self, packed: Any, depth: int) -> None:
        import tarfile

        try:
            # What is no header is skipped, so that an archive behind the first one is searched too.
            with tarfile.open(mode="r|", fileobj=packed, bufsize=_CHUNK, ignore_zeros=True) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep them all in memory
                    self._count(0)
                    opened: Any = archive.extractfile(member) if member.isfile() else None
                    if opened is not None and self._unpacker(opened.peek(_HEAD)):
                        self._search(opened, depth)
        except tarfile.TarError:
            raise _Unsafe(UNREADABLE) from None


_Unpacker = Callable[[Any, int], None]


def _refuse(_packed: Any, _depth: int) -> None:
    raise _Unsafe(UNREADABLE)


class _SearchedStream(io.RawIOBase):
    """Passes on what `source` has. Raises _Unsafe at a secret."""

    def __init__(self, source: Any, values: Sequence[str], count: Callable[[int], None]) -> None:
        self._source, self._masker, self._count = source, Masker(values), count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = 0
        while size < min(_HEAD, len(buffer)):  # else the head of a file could come in pieces
            chunk = self._source.read1(len(buffer) - size)
            self._count(len(chunk))
            if chunk:
                self._masker.feed(chunk)
            else:
                self._masker.flush()
            if self._masker.count:
                raise _Unsafe(FOUND)
            if not chunk:
                break
            buffer[size : size + len(chunk)] = chunk
            size += len(chunk)
        return size


def _members(packed: BinaryIO) -> int:
    """How many members a zip has, at most."""
    packed.seek(0)
    return sum(chunk.count(_ZIP_MEMBER) for chunk in iter(lambda: packed.read(_CHUNK), b""))
