"""Lines of a log that came from elsewhere: of bounded length, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

LONGEST = 1 << 16
BOM = b"\xef\xbb\xbf"  # GitHub begins every log with one, and the file of every step
_BLOCK = 1 << 18


class Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def bounded(source: Source) -> Iterator[bytes]:
    """The lines of `source` without their `\\n`, at most `LONGEST` bytes of each.

    Of a longer line the beginning; of a progress bar, which writes one line again and again, what it wrote last.
    """
    # Whole blocks are split at once: a call for each line would take most of the time that a log is read in.
    block = source.read(_BLOCK).removeprefix(BOM)
    begun = rest = b""  # of a line that is too long already its beginning, and of any line what came last
    while block:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if lines and begun:
            lines[0], begun = _kept(begun, lines[0]), b""
        if lines and max(map(len, lines)) > LONGEST:
            lines = [_kept(line, line) if len(line) > LONGEST else line for line in lines]
        yield from lines
        if len(rest) > LONGEST:
            begun, rest = begun or rest[:LONGEST], rest[-LONGEST:]
        block = source.read(_BLOCK)
    if rest:
        yield _kept(begun, rest) if begun else rest


def _kept(begun: bytes, ended: bytes) -> bytes:
    """What is kept of a line that is too long."""
    last = ended[-LONGEST:]
    return last if b"\r" in last.rstrip(b"\r") else begun[:LONGEST]
