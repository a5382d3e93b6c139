"""Of a log of any size the few lines that tell something of its jobs.

Nearly all of a log is what a job's programs print. One RE2 expression of the words that readers react to runs over
whole blocks; lines are taken apart only where it finds one, and where a reader asks for the next line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Any

from ci_tasks.features.ci_logs.parse.split_lines import LineForm, LogLine, is_numbered, split_lines
from ci_tasks.features.ci_logs.sources.bounded_lines import bounded_blocks, bounded_lines
from ci_tasks.logs.lines import expression, next_line

_TIMESTAMP = rb"T\d\d:\d\d:\d\d\.\d{3}"
_HEAD = 1 << 16  # bytes whose lines are all given: nearly every log shows its form there


def telling_lines(
    chunks: Callable[[], Iterable[bytes]], words: Sequence[bytes], needs_next_line: Callable[[], bool]
) -> Iterator[LogLine]:
    """The lines of `split_lines` that have one of `words` (expressions of RE2), and each after a line with which its
    reader came to need the next. Some others come too: what tells of all lines between is in those given. These are the
    first and the last with a timestamp, and wherever gh's columns change.

    `chunks` begins to read the log anew. A log with a browser's line numbers is given whole.
    """
    if is_numbered(bounded_lines(chunks())):
        yield from split_lines(bounded_lines(chunks()))
        return
    blocks = bounded_blocks(chunks())
    block = next(blocks, b"")
    lines = _TellingLines(needs_next_line)
    end = block.rfind(b"\n", 0, _HEAD) + 1 or len(block)
    yield from lines.all_of(block[:end])
    if not lines.has_time:
        words = [*words, _TIMESTAMP]
    words_in_line = expression(b"(?:%b)[^\\n]*" % b"|".join(words))  # with the rest of a line: one hit a line
    for text in filter(None, chain([block[end:]], blocks)):
        yield from lines.of(text, words_in_line)


class _TellingLines:
    def __init__(self, needs_next_line: Callable[[], bool]) -> None:
        self.form = LineForm()
        self._needs_next_line = needs_next_line
        self._number = 1  # of the next line
        self.has_time = False  # a line had a timestamp

    def all_of(self, block: bytes) -> Iterator[LogLine]:
        for line in block.removesuffix(b"\n").split(b"\n") if block else ():
            split = self.form.text_of(self._number, line)
            self.has_time = self.has_time or split.seconds is not None
            yield split
            self._number += 1

    def of(self, text: bytes, words: Any) -> Iterator[LogLine]:
        newlines = text.count(b"\n")
        columns = self.form.columns
        # Line by line where a line has other columns, or a byte order mark before them.
        if columns and (b"\n" + text).count(b"\n" + columns) < newlines + (not text.endswith(b"\n")):
            yield from self.all_of(text)
            return
        first = self._number
        begins = merge((match.start() for match in words.finditer(text)), self._last_stamped(text))
        at = counted = 0
        while at < len(text):
            start = at if self._needs_next_line() else next_line(text, begins, at)
            if start < 0:
                break
            stop = text.find(b"\n", start)
            stop = len(text) if stop < 0 else stop
            self._number += text.count(b"\n", counted, start)
            counted = start
            yield self.form.text_of(self._number, text[start:stop])
            at = stop + 1
        self._number = first + newlines + (not text.endswith(b"\n"))

    def _last_stamped(self, text: bytes) -> Iterator[int]:
        """Where the last line with a timestamp begins."""
        end = len(text)
        while end > 0 and self.form.pattern is not None:
            start = text.rfind(b"\n", 0, end - 1) + 1
            if self.form.is_stamped(text[start:end]):
                yield start
                return
            end = start
