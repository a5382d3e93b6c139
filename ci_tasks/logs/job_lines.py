"""A GitHub job log in any of its forms → lines without CI's prefix, and which jobs it has lines of.

Three forms are known, and the first line that has a prefix settles which one a log has:

    TIMESTAMP text                      the raw job log, also each file of the zipped download
    JOB<tab>STEP<tab>TIMESTAMP text     `gh run view --log` and `--log-failed`; STEP may be UNKNOWN STEP
    text                                a pasted log, or a run log of our own

A timestamp is 2026-01-02T03:04:05.1234567Z: with seven digits, so that other programs' stay part of the text. Some
tools shorten it to milliseconds: it is one behind gh's columns, or on the first line of the log. Before all of this a
browser may have put the number of each line: it is taken off where the first lines are numbered one by one. A line that
the runner breaks (a variable with a newline) goes on without a timestamp. A byte order mark stands at the beginning of
every page.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.logs.lines import blocks

CYAN = b"\x1b[36;1m"  # what the runner puts before each line of a script, and before nothing else
_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,40}[ -/]{0,8}[@-~]")
_UNKNOWN_STEP = "UNKNOWN STEP"
_MAX_JOBS, _MAX_PARTS = 10_000, 1000
_BOM = b"\xef\xbb\xbf"
_TIME = rb"(?:\xef\xbb\xbf)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(%s)Z(?: |(?=[\r\n]|\Z))"
_RAW = re.compile(_TIME % rb"\d{7}")
_RAW_MILLISECONDS = re.compile(_TIME % rb"\d{3}")
_GH = re.compile(rb"(?:\xef\xbb\xbf)?([^\t\r\n]{1,300})\t([^\t\r\n]{0,500})\t" + _TIME % rb"\d{3}(?:\d{4})?")
_NUMBERED = re.compile(rb"(?:\xef\xbb\xbf)?[ ]{0,8}(\d{1,9})(?:\t| ?[|:] ?| +(?=\d{4}-\d\d-\d\dT)| |(?=\r?\n?\Z))")
_LEAST_NUMBERED, _MOST_PROBED = 3, 8  # lines at the beginning
_RUNNER = b"Current runner version: '"
_JOB_NAME = b"Complete job name: "
_JOB_END = (b"Cleaning up orphan processes", b"##[error]The runner has received a shutdown signal")
_OF_RUNNER = (_RUNNER, _JOB_NAME, *_JOB_END)
JOBS_WORDS = (rb"##\[error\]", *(re.escape(beginning) for beginning in _OF_RUNNER))
_FAILED = re.compile(
    rb"##\[error\](?:Process completed with exit code (?!0\.)|The operation was canceled\."
    rb"|The action '.{0,300}' has timed out)"
)


class LogLine(NamedTuple):
    """A line of a log. `number` is 1-based in the input, `text` has neither CI's prefix nor the newline, `seconds` is
    the timestamp (UTC, since the epoch) or None; `job` and `step` are gh's columns, "" in the other forms, and of a
    step that gh does not know."""

    number: int
    text: bytes
    seconds: float | None = None
    job: str = ""
    step: str = ""


@dataclass(frozen=True)
class JobPart:
    """A stretch of a log from one set-up of a runner to the next: an attempt of a job, or one of several jobs whose
    logs were put together. `name` is the job's, "" where the log does not say it; `first` is its first line."""

    name: str
    first: int
    failed: bool


@dataclass(frozen=True)
class JobInLog:
    """One job of a log: its name in gh's column ("" in a log of one job), and whether a line says that a step failed,
    timed out or was cancelled. `parts` are its attempts where there are several."""

    name: str
    failed: bool
    parts: tuple[JobPart, ...] = ()


class LineForm:
    """What stands before the text of a log's lines. `pattern` is None until the first line that has a prefix; `columns`
    are gh's of the last line that has them."""

    def __init__(self) -> None:
        self.pattern: re.Pattern[bytes] | None = None
        self.columns = b""
        self._job = self._step = ""

    def text_of(self, number: int, line: bytes) -> LogLine:
        """The next line of the log, without its newline."""
        line = line.rstrip(b"\r\n")
        if self.pattern is None:  # a log that has none is asked at every line; gh's columns end with a tab
            match = _RAW.match(line) or (_GH.match(line) if line.find(b"\t") > 0 else None)
        else:
            match = self.pattern.match(line)
        if match is None and number == 1:
            match = _RAW_MILLISECONDS.match(line)
        if match is None:
            # Of a value with several lines gh repeats the columns and not the timestamp.
            if self.columns and line.startswith(self.columns):
                return LogLine(number, line[len(self.columns) :].removeprefix(_BOM), None, self._job, self._step)
            return LogLine(number, line.removeprefix(_BOM))
        self.pattern = match.re
        if self.pattern is _GH and line[: match.start(3)].removesuffix(_BOM) != self.columns:
            self.columns = line[: match.end(2) + 1]
            self._job, step = printable_text(match[1]), printable_text(match[2])
            self._step = "" if step == _UNKNOWN_STEP else step
        return LogLine(number, line[match.end() :], _seconds(*match.groups()[-2:]), self._job, self._step)


def split_lines(pieces: Iterable[bytes]) -> Iterator[LogLine]:
    """The lines of a log in any form, as a stream. `pieces` are its bytes, cut anywhere."""
    form = LineForm()
    for number, line in enumerate(_raw_lines(pieces), 1):
        yield form.text_of(number, line)


def without_numbers(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A log without the numbers with which its lines begin, if it was copied from a browser's view. A number that is
    not the next one, or 1 where another step begins, is text."""
    cut = blocks(pieces)
    first = next(cut, b"")
    head = first.split(b"\n", _MOST_PROBED)[:_MOST_PROBED]
    numbers = [int(match[1]) for line in head if (match := _NUMBERED.match(line))]
    counted = list(range(numbers[0], numbers[0] + len(numbers))) if numbers else []
    if len(numbers) < max(_LEAST_NUMBERED, len(head) - (not head[-1])) or numbers != counted:
        yield from chain([first], cut)
        return
    expected = None
    for block in chain([first], cut):
        lines = block.split(b"\n")
        for at, line in enumerate(lines):
            match = _NUMBERED.match(line)
            if match and (expected is None or int(match[1]) in (expected, 1)):
                expected = int(match[1]) + 1
                lines[at] = line[match.end() :]
        yield b"\n".join(lines)


class JobsInLog:
    """The jobs that a log has lines of, in order, while its lines come in: `gh run view` prints every job of a run, or
    every one that failed. Of its lines those are enough that have one of JOBS_WORDS, and all of gh's form."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._failed: set[str] = set()
        self._parts: dict[str, _Parts] = {}
        self._several = False

    def feed(self, line: LogLine) -> None:
        if (line.job or not self._several) and len(self._names) < _MAX_JOBS:
            self._names[line.job] = None
            self._several = self._several or line.job != ""
        if line.text.startswith(b"##[error]") and _FAILED.match(line.text):
            self._failed.add(line.job)
            self._parts.setdefault(line.job, _Parts()).fail()
        if line.text.startswith(_OF_RUNNER):
            self._parts.setdefault(line.job, _Parts()).feed(line)

    def jobs(self) -> tuple[JobInLog, ...]:
        # Where gh names jobs, the others are what stood around the log where it was copied from.
        names = [name for name in self._names if name or not self._several]
        parts = self._parts
        return tuple(
            JobInLog(name, name in self._failed, parts[name].several() if name in parts else ()) for name in names
        )


class _Parts:
    """The attempts of one job while its lines come in. A program may print that a runner starts; only what stands
    behind the runner's end is another attempt."""

    def __init__(self) -> None:
        self._parts = [JobPart("", 1, failed=False)]
        self._ended = False

    def feed(self, line: LogLine) -> None:
        last = self._parts[-1]
        if line.text.startswith(_RUNNER):
            if self._ended and len(self._parts) < _MAX_PARTS:
                self._parts.append(JobPart("", line.number, failed=False))
                self._ended = False
        elif line.text.startswith(_JOB_NAME):
            name = last.name or printable_text(line.text.removeprefix(_JOB_NAME)).strip()
            self._parts[-1] = replace(last, name=name)
        else:
            self._ended = True

    def fail(self) -> None:
        self._parts[-1] = replace(self._parts[-1], failed=True)

    def several(self) -> tuple[JobPart, ...]:
        return tuple(self._parts) if len(self._parts) > 1 else ()


def printable_text(raw: bytes, longest: int = 4000) -> str:
    """A line as text: no colour, no control character but the tab, of bounded length."""
    line = raw[:longest]
    return printable((_ANSI.sub(b"", line) if b"\x1b" in line else line).decode("utf-8", "replace"))


def _raw_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks(pieces):
        yield from block.removesuffix(b"\n").split(b"\n")


def _seconds(stamp: bytes, fraction: bytes) -> float | None:
    whole = _whole_seconds(stamp)
    return None if whole is None else whole + int(fraction) / 10 ** len(fraction)


@lru_cache(maxsize=4)  # a log has many lines in one second
def _whole_seconds(stamp: bytes) -> int | None:
    year, month, day, hour, minute, second = (int(part) for part in re.split(rb"[-T:]", stamp))
    try:
        return calendar.timegm((year, month, day, hour, minute, second))
    except ValueError:  # no month 13
        return None
