"""A GitHub job log in any of its forms → lines without CI's prefix, and which part of the log each belongs to.

Three forms are known, and the first line that has a prefix settles which one a log has:

    TIMESTAMP text                      the raw job log, also each file of the zipped download
    JOB<tab>STEP<tab>TIMESTAMP text     `gh run view --log` and `--log-failed`; STEP may be UNKNOWN STEP
    text                                a pasted log, or a run log of our own

A timestamp is 2026-01-02T03:04:05.1234567Z: with seven digits, so that other programs' stay part of the text. Some
tools shorten it to milliseconds: it is one behind gh's columns. A line that the runner breaks (a variable with a
newline) continues without a timestamp. Every page begins with a byte order mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from ci_tasks.logs.lines import blocks, visible

CYAN = b"\x1b[36;1m"  # what the runner puts before each line of a script, and before nothing else
RUNNER = b"Current runner version: '"
LAST_MESSAGE = b"Cleaning up orphan processes"
SHUTDOWN = b"The runner has received a shutdown signal"
_UNKNOWN_STEP = "UNKNOWN STEP"
_MAX_ATTEMPTS = 1000
_BOM = b"\xef\xbb\xbf"
_TIME = rb"(?:\xef\xbb\xbf)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(%s)Z(?: |(?=[\r\n]|\Z))"
_RAW = re.compile(_TIME % rb"\d{7}")
_GH = re.compile(rb"(?:\xef\xbb\xbf)?([^\t\r\n]{1,300})\t([^\t\r\n]{0,500})\t" + _TIME % rb"\d{3}(?:\d{4})?")


class LogLine(NamedTuple):
    """A line of a log. `number` is 1-based in the input, `text` has neither CI's prefix nor the newline, `seconds` is
    the timestamp (UTC, since the epoch) or None; `job` and `step` are gh's columns, "" in the other forms, and of a
    step that gh does not know."""

    number: int
    text: bytes
    seconds: float | None = None
    job: str = ""
    step: str = ""


class LineForm:
    """What stands before the text of a log's lines. `columns` are gh's of the last line that has them."""

    def __init__(self) -> None:
        self._pattern: re.Pattern[bytes] | None = None  # None until the first line that has a prefix
        self.columns = b""
        self._job = self._step = ""

    def text_of(self, number: int, line: bytes) -> LogLine:
        """The next line of the log, without its newline."""
        line = line.rstrip(b"\r\n")
        if self._pattern is None:  # a log that has none is asked at every line; gh's columns end with a tab
            match = _RAW.match(line) or (_GH.match(line) if line.find(b"\t") > 0 else None)
        else:
            match = self._pattern.match(line)
        if match is None:
            # Of a value with several lines gh repeats the columns and not the timestamp.
            if self.columns and line.startswith(self.columns):
                return LogLine(number, line[len(self.columns) :].removeprefix(_BOM), None, self._job, self._step)
            return LogLine(number, line.removeprefix(_BOM))
        self._pattern = match.re
        if self._pattern is _GH and line[: match.start(3)].removesuffix(_BOM) != self.columns:
            self.columns = line[: match.end(2) + 1]
            self._job, step = visible(match[1]), visible(match[2])
            self._step = "" if step == _UNKNOWN_STEP else step
        return LogLine(number, line[match.end() :], _seconds(*match.groups()[-2:]), self._job, self._step)


def split_lines(pieces: Iterable[bytes]) -> Iterator[LogLine]:
    """The lines of a log in any form, as a stream. `pieces` are its bytes, cut anywhere."""
    form = LineForm()
    raw = chain.from_iterable(block.removesuffix(b"\n").split(b"\n") for block in blocks(pieces))
    for number, line in enumerate(raw, 1):
        yield form.text_of(number, line)


class LogPart(NamedTuple):
    """A part of a log: its job, by gh's column, and its attempt, or its number among several logs that were joined,
    counted from 0."""

    job: str
    number: int


class PartOfLine:
    """Says to which part the lines of a log belong, one after another. A program may print that a runner starts; only
    what stands behind the runner's end is another part."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ended: set[str] = set()

    def of(self, line: LogLine) -> LogPart:
        number = self._numbers.get(line.job, 0)
        if line.text.startswith(RUNNER) and line.job in self._ended and number < _MAX_ATTEMPTS:
            self._ended.discard(line.job)
            number = self._numbers[line.job] = number + 1
        elif line.text.startswith((LAST_MESSAGE, b"##[error]" + SHUTDOWN)):
            self._ended.add(line.job)
        return LogPart(line.job, number)


def _seconds(stamp: bytes, fraction: bytes) -> float | None:
    try:
        whole = datetime.fromisoformat(f"{stamp.decode()}+00:00").timestamp()
    except ValueError:  # no month 13
        return None
    return whole + float(f"0.{fraction.decode()}")
