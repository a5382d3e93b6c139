"""A log of any size, read once in blocks: each reader gets the few lines that are worth a look.

Most of a gigabyte of log is metrics and requests. A reader registers the words that tell something as one expression
of RE2, which runs over whole blocks; only lines that it finds are given to the reader, and the lines after them for as
long as the reader needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

BLOCK = 1 << 18
LONGEST = 1 << 16  # bytes of a line that are looked at
_LONGEST_SHOWN = 4000
_TAIL = 30  # lines
_BEFORE = 2000  # bytes
_MAX_UNINFORMATIVE, _LONGEST_UNINFORMATIVE = 20_000, 2000  # lines that are remembered, bytes of each
VARYING = b"0123456789abcdef"  # numbers and ids; of the words enough is left
_ANSI = re.compile(
    r"_?bk;t=\d+\x07|\x1b_[^\x07\x1b]{0,200}(?:\x07|\x1b\\)?"  # Buildkite's timestamps
    r"|\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]|\^\[\[[0-9;]*m"
)


class LineReader:
    """What gets lines of a log. `words` is an expression of RE2 for bytes."""

    words: bytes

    def needs_next_line(self) -> bool:
        """Whether the next line is needed, whatever it says."""
        return False

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        """A line that has one of the words or was needed, with its 1-based number and up to 2,000 bytes before it.
        Returns whether it was informative: one that was not is not given again with other numbers in it."""
        raise NotImplementedError

    def known_passage(self, text: bytes, start: int, number: int) -> int:
        """How many bytes of whole lines, from the line that begins at `start`, say what was said before."""
        return 0

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        """The log's last lines with their numbers, whatever they say."""


def read(pieces: Iterable[bytes], *readers: LineReader, block: int = BLOCK) -> None:
    """Read a log, whose bytes may be cut anywhere, once and in bounded memory."""
    scans = [_Scan(reader) for reader in readers]
    number, earlier = 1, b""
    tail: list[tuple[int, bytes]] = []
    for text in blocks(pieces, block):
        for scan in scans:
            scan.read(text, number, earlier)
        number += text.count(b"\n") + (not text.endswith(b"\n"))
        tail = [*tail, *_last_lines(text, number)][-_TAIL:]
        earlier = (earlier + text[-_BEFORE:])[-_BEFORE:]
    for reader in readers:
        reader.end(tail)


@cache
def expression(words: bytes) -> Any:
    """The words compiled, for RE2."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes that are no text stay searchable
    options.never_capture = True
    options.max_mem = 64 << 20
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
        rest = _shortened(joined[end:])
        pending, size = [rest], len(rest)
    if last := b"".join(pending):
        yield last


def visible(raw: bytes, longest: int = _LONGEST_SHOWN) -> str:
    """The line as text that is safe for a terminal: without escape sequences and control characters, of bounded
    length."""
    text = raw.rstrip(b"\r\n")[:longest].decode("utf-8", "replace")
    if "\x1b" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    text = text.replace("\xa0", " ").replace("\ufeff", "")  # GitHub's raw logs begin each step with a byte order mark
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\t" else "�" for char in text)
    return text.rstrip()


def shown(raw: bytes) -> str:
    """The same of what a terminal shows last of the line, in at most 300 characters."""
    return visible(segments(raw)[-1])[:300].rstrip()


def segments(raw: bytes) -> list[bytes]:
    """What a terminal would have shown one after another in the same line: a progress bar, and what is glued onto
    it."""
    if b"\r" not in raw:
        return [raw]
    return [segment for segment in raw.rstrip(b"\r\n").split(b"\r") if segment.strip()][-20:] or [b""]


class _Scan:
    """The lines of one reader. A line that told nothing is not looked at again when it comes once more with other
    numbers in it: servers log the same warning a million times."""

    def __init__(self, reader: LineReader) -> None:
        self._reader, self._one_a_line = reader, expression(b"(?:%b)[^\n]*" % reader.words)
        self._uninformative: set[bytes] = set()

    def read(self, text: bytes, number: int, earlier: bytes) -> None:
        """One block: `number` is its first line's number, `earlier` what stood before it."""
        reader, uninformative, at, end, counted = self._reader, self._uninformative, 0, len(text), 0
        words = (match.start() for match in self._one_a_line.finditer(text))
        eager = reader.needs_next_line()
        while at < end:
            start = at if eager else next_line(text, words, at)
            if start < 0:
                break
            stop = text.find(b"\n", start)
            stop = end if stop < 0 else stop
            line = text[start:stop]
            at = stop + 1
            shape = b"" if eager else line.translate(None, VARYING)
            if not eager and shape in uninformative:
                continue
            number += text.count(b"\n", counted, start)
            counted = start
            if known := reader.known_passage(text, start, number):
                at = start + known
                continue
            is_informative = reader.feed(number, line, _before(earlier, text, start))
            is_small = len(shape) <= _LONGEST_UNINFORMATIVE and len(uninformative) < _MAX_UNINFORMATIVE
            if not is_informative and not eager and is_small:
                uninformative.add(shape)
            eager = reader.needs_next_line()


def next_line(text: bytes, words: Iterator[int], at: int) -> int:
    """The position of the next line with a word, at `at` or after it; -1 if there is none."""
    for begin in words:
        if begin >= at:
            return text.rfind(b"\n", at, begin) + 1 or at
    return -1


def _before(earlier: bytes, text: bytes, start: int) -> bytes:
    if start >= _BEFORE:
        return text[start - _BEFORE : start]
    return (earlier + text[:start])[-_BEFORE:]


def _last_lines(text: bytes, after: int) -> Iterator[tuple[int, bytes]]:
    """The last lines of a block; `after` is the number of the line that follows it."""
    end = start = len(text) - text.endswith(b"\n")
    for _ in range(_TAIL):
        start = text.rfind(b"\n", 0, start)
        if start < 0:
            break
    last = [_shortened(line) for line in text[start + 1 : end].split(b"\n")]
    return enumerate(last, after - len(last))


def _shortened(line: bytes) -> bytes:
    """For a line that does not end, its beginning and its end so far; for a progress bar, also the beginning of what a
    person sees."""
    if len(line) <= 2 * LONGEST:
        return line
    if b"\r" not in line:
        return line[:LONGEST] + b" " + line[-LONGEST:]
    seen = line.rpartition(b"\r")[2]
    if len(seen) > LONGEST:
        seen = seen[: LONGEST // 2] + b" " + seen[-LONGEST // 2 :]
    return line[:LONGEST] + b"\r" + seen
