"""A reader over packed or foreign text: its faults become words, and it ends where no log would go on."""

from __future__ import annotations

import codecs
import io
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from ci_tasks.errors import UsageError
from ci_tasks.forge.spool import MOST

AGAIN = "download it once more, or give the job's log as text: gh run view RUN --log-failed | … --log -"
_CHUNK = 1 << 16
_ANY_RATIO = 1 << 28  # bytes; so few do no harm


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


def most(packed: int) -> int:
    """How many bytes may come out of `packed` ones: no log is so even that it shrinks to a 500th, a bomb does."""
    return min(MOST, max(_ANY_RATIO, 500 * packed))


def too_much(name: str, limit: int) -> UsageError:
    return UsageError(
        f"{name!r} unpacks to more than {limit >> 20} MiB, so this is no log",
        hint="if you trust it, unpack it yourself and give the failed job's log",
    )


def reader(
    source: Readable, name: str, limit: int = MOST, change: Callable[[bytes, bool], bytes] | None = None
) -> io.BufferedReader:
    """`source`, unpacking as it is read; `change` turns each chunk into what is read, told which is the last.

    Reading raises UsageError, naming `name`, where the packing is damaged or more than `limit` bytes come out.
    """
    return io.BufferedReader(_Unpacked(source, name, limit, change), _CHUNK)


def utf8_from(encoding: str) -> Callable[[bytes, bool], bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    return lambda chunk, last: decoder.decode(chunk, last).encode()


class _Unpacked(io.RawIOBase):
    def __init__(self, source: Readable, name: str, limit: int, change: Callable[[bytes, bool], bytes] | None) -> None:
        self._source, self._name, self._limit, self._change = source, name, limit, change
        self._ready, self._seen, self._over = b"", 0, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready and not self._over:
            chunk = self._read()
            self._over = not chunk
            self._ready = self._change(chunk, self._over) if self._change else chunk
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _read(self) -> bytes:
        try:
            chunk = self._source.read(_CHUNK)
        # What gzip and zipfile raise over damaged bytes: BadZipFile and LZMAError have no nearer ancestor.
        except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error) as error:
            raise damaged(self._name, error) from None
        except Exception as error:
            if type(error).__name__ not in ("BadZipFile", "LZMAError"):
                raise
            raise damaged(self._name, error) from None
        self._seen += len(chunk)
        if self._seen > self._limit:
            raise too_much(self._name, self._limit)
        return chunk

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def damaged(name: str, error: Exception) -> UsageError:
    return UsageError(f"{name!r} is damaged, or only a part of it arrived: {error}", hint=AGAIN)
