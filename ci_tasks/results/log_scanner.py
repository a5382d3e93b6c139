"""A log of any size as the few lines that are worth a look.

Most of a gigabyte of log is metrics and requests. One RE2 expression of all telling words runs over whole blocks;
only lines that it finds are given out, and the lines after them for as long as the reader needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from ci_tasks.results.word_search import search

LineCallback = Callable[[int, bytes, bytes], bool]
BLOCK = 1 << 18
LONGEST = 1 << 16  # bytes of a line that are looked at
_TAIL = 30  # lines
_BEFORE = 2000  # bytes
_MAX_UNINFORMATIVE, _LONGEST_UNINFORMATIVE = 20_000, 2000  # lines that are remembered, bytes of each
_VARYING = b"0123456789abcdef"  # numbers and ids; of the words enough is left


def words_expression(words: bytes) -> Any:
    """A compiled expression of RE2 for `words`, which is one for bytes."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes that are no text stay searchable
    options.never_capture = True
    return re2.compile(words, options)


def blocks(pieces: Iterable[bytes], block: int = BLOCK) -> Iterator[bytes]:
    """The log cut after newlines, in blocks of about `block` bytes. A line that is longer than LONGEST keeps its
    beginning and its end; of a progress bar also the beginning of what follows its last carriage return: that is what
    a person saw."""
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
        rest = _shortened(rest)
        pending, size = [rest], len(rest)
    if last := b"".join(pending):
        yield last


def _shortened(line: bytes) -> bytes:
    """Of a line that goes on for ever its beginning and its end so far; of a progress bar's also the beginning of what
    a person sees."""
    if len(line) <= 2 * LONGEST:
        return line
    if b"\r" not in line:
        return line[:LONGEST] + b" " + line[-LONGEST:]
    seen = line.rpartition(b"\r")[2]
    if len(seen) > LONGEST:
        seen = seen[: LONGEST // 2] + b" " + seen[-LONGEST // 2 :]
    return line[:LONGEST] + b"\r" + seen


class LogScanner:
    """Goes through a log once and gives out what may matter. `tail` are its last lines, (number, line), whatever
    they say.

    A line that told nothing is not looked at again when it comes once more with other numbers in it: servers log the
    same warning a million times.
    """

    def __init__(self, words: Any, needs_next_line: Callable[[], bool]) -> None:
        self._words = words
        self._needs_next_line = needs_next_line
        self._uninformative: set[bytes] = set()
        self.tail: list[tuple[int, bytes]] = []

    def read(self, pieces: Iterable[bytes], callback: LineCallback, block: int = BLOCK) -> None:
        """Call `callback` with (1-based number, line, what stood before it) of each line that has one of the words, and
        of each after it while it needs the next line. It returns whether the line was informative."""
        number, earlier = 1, b""
        with closing(search(blocks(pieces, block), self._words)) as searched:
            for text, begins, newlines in searched:
                self._give_out(text, iter(begins), number, earlier, callback)
                number += newlines + (not text.endswith(b"\n"))
                self._keep_tail(text, number)
                earlier = (earlier + text[-_BEFORE:])[-_BEFORE:]

    def _give_out(
        self,
        text: bytes,
        words: Iterator[int],
        number: int,
        earlier: bytes,
        callback: Callable[[int, bytes, bytes], bool],
    ) -> None:
        """The lines of one block: `words` is where they begin in it, `number` that of its first line."""
        uninformative, at, end, counted = self._uninformative, 0, len(text), 0
        eager = self._needs_next_line()
        while at < end:
            start = at if eager else next_line(text, words, at)
            if start < 0:
                break
            stop = text.find(b"\n", start)
            stop = end if stop < 0 else stop
            line = text[start:stop]
            at = stop + 1
            shape = b"" if eager else line.translate(None, _VARYING)
            if not eager and shape in uninformative:
                continue
            number += text.count(b"\n", counted, start)
            counted = start
            is_informative = callback(number, line, _before(earlier, text, start))
            is_small = len(shape) <= _LONGEST_UNINFORMATIVE and len(uninformative) < _MAX_UNINFORMATIVE
            if not is_informative and not eager and is_small:
                uninformative.add(shape)
            eager = self._needs_next_line()

    def _keep_tail(self, text: bytes, after: int) -> None:
        """The last lines of what was read so far; `after` is the number of the line that follows."""
        end = start = len(text) - text.endswith(b"\n")
        for _ in range(_TAIL):
            start = text.rfind(b"\n", 0, start)
            if start < 0:
                break
        last = [_shortened(line) for line in text[start + 1 : end].split(b"\n")]
        self.tail = [*self.tail, *enumerate(last, after - len(last))][-_TAIL:]


def next_line(text: bytes, words: Iterator[int], at: int) -> int:
    """Where the line of the next word begins that is not before `at`; -1 where there is none."""
    for begin in words:
        if begin >= at:
            return text.rfind(b"\n", at, begin) + 1 or at
    return -1


def _before(earlier: bytes, text: bytes, start: int) -> bytes:
    if start >= _BEFORE:
        return text[start - _BEFORE : start]
    return (earlier + text[:start])[-_BEFORE:]
