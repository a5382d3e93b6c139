"""A log of any size as the few lines that are worth a look.

Most of a gigabyte of log is metrics and requests. One RE2 expression of all telling words runs over whole blocks;
only lines that it finds are given out, and the lines after them for as long as the reader is hungry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

BLOCK = 1 << 18
LONGEST = 1 << 16  # bytes of a line that are looked at
_TAIL, _TAIL_BYTES = 30, 1 << 15
_BORING = 20_000
_DIGITS = b"0123456789"


def blocks(pieces: Iterable[bytes], block: int = BLOCK) -> Iterator[bytes]:
    """The log cut after newlines, in blocks of about `block` bytes. A line that is longer than LONGEST keeps its
    beginning, and what follows its last carriage return: of a progress bar that is what a person saw."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size < block:
            continue
        joined = b"".join(pending)
        end = joined.rfind(b"\n") + 1
        if end:
            yield joined[:end]
        rest = joined[end:]
        if len(rest) > 2 * LONGEST:
            rest = _shortened(rest)
        pending, size = [rest], len(rest)
    if last := b"".join(pending):
        yield last


def _shortened(line: bytes) -> bytes:
    """The beginning of a line that goes on for ever, and the end of it so far."""
    return line[:LONGEST] + b"\r" + line[-LONGEST:].rsplit(b"\r", 1)[-1]


class Telling:
    """Goes through a log once and gives out what may matter. `tail` are its last lines, (number, line), whatever
    they say.

    A line that told nothing is not looked at again when it comes once more with other numbers in it: servers log the
    same warning a million times.
    """

    def __init__(self, words: Any, hungry: Callable[[], bool]) -> None:
        self._words = words
        self._hungry = hungry
        self._boring: set[bytes] = set()
        self.tail: list[tuple[int, bytes]] = []

    def read(self, pieces: Iterable[bytes], look: Callable[[int, bytes, bytes], bool], block: int = BLOCK) -> None:
        """Call `look` with (1-based number, line, what stood before it in its block) of each line that has one of
        the words, and of each after it while `hungry()`. It returns whether the line told anything."""
        search, hungry, boring = self._words.search, self._hungry, self._boring
        number, text = 1, b""
        for text in blocks(pieces, block):
            at, end, first = 0, len(text), number
            while at < end:
                if hungry():
                    start, eager = at, True
                else:
                    hit = search(text, at)
                    if hit is None:
                        break
                    start, eager = text.rfind(b"\n", at, hit.start()) + 1 or at, False
                    number += text.count(b"\n", at, start)
                stop = text.find(b"\n", start)
                stop = end if stop < 0 else stop
                line = text[start:stop]
                shape = b"" if eager else line.translate(None, _DIGITS)
                told = shape not in boring and look(number, line, text[max(0, start - 2000) : start])
                if shape and not told and len(boring) < _BORING:
                    boring.add(shape)
                number += 1
                at = stop + 1
            number += text.count(b"\n", at) if at < end else 0
            self._keep_tail(text, first, number)

    def _keep_tail(self, text: bytes, first: int, after: int) -> None:
        """The last lines of what was read so far."""
        last = text[-_TAIL_BYTES:].splitlines()[-_TAIL:]
        if len(last) < _TAIL and len(text) >= _TAIL_BYTES:
            last = last[1:]
        begin = max(first, after - len(last) + (not text.endswith(b"\n")))
        self.tail = [*self.tail, *enumerate(last, begin)][-_TAIL:]
