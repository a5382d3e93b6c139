"""A GitHub job log in any of its forms → plain lines, one at a time.

Three forms are known, and the first line that has a prefix settles which one a log has:

    TIMESTAMP text                      the raw job log, also each file of the zipped download
    JOB<tab>STEP<tab>TIMESTAMP text     `gh run view --log` and `--log-failed`; STEP may be UNKNOWN STEP
    text                                a pasted log, or a run log of our own

A timestamp is 2026-01-02T03:04:05.1234567Z: with seven digits, so that other programs' stay part of the text. A line
that the runner breaks (a variable with a newline) goes on without a timestamp. A byte order mark stands at the
beginning of every page.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ci_tasks.errors import printable

UNKNOWN_STEP = "UNKNOWN STEP"
_MAX_JOBS = 10_000
_BOM = b"\xef\xbb\xbf"
_STAMP = rb"(?:\xef\xbb\xbf)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{7})Z(?: |(?=[\r\n]|\Z))"
_RAW = re.compile(_STAMP)
_GH = re.compile(rb"(?:\xef\xbb\xbf)?([^\t\r\n]{1,300})\t([^\t\r\n]{0,500})\t" + _STAMP)
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
class JobInLog:
    """One job of a log: its name in gh's column ("" in a log of one job), how many lines it has, whether one of them
    says that a step failed, timed out or was cancelled."""

    name: str
    lines: int
    failed: bool


def split_lines(raw: Iterable[bytes]) -> Iterator[LogLine]:
    """The lines of a log in any form, as a stream. The caller splits at newlines and bounds the length of a line."""
    form: re.Pattern[bytes] | None = None
    columns, job, step = b"", "", ""
    for number, line in enumerate(raw, 1):
        line = line.rstrip(b"\r\n")
        match = form.match(line) if form else _RAW.match(line) or _GH.match(line)
        if match is None:
            # Of a value with several lines gh repeats the columns and not the timestamp.
            inside = columns != b"" and line.startswith(columns)
            text = line[len(columns) :] if inside else line
            yield LogLine(number, text.removeprefix(_BOM), None, job if inside else "", step if inside else "")
            continue
        form = match.re
        if form is _GH and line[: match.start(3)].removesuffix(_BOM) != columns:
            columns = line[: match.end(2) + 1]
            job, step = _column_text(match[1]), _column_text(match[2])
            step = "" if step == UNKNOWN_STEP else step
        yield LogLine(number, line[match.end() :], _seconds(*match.groups()[-2:]), job, step)


def jobs_in(lines: Iterable[LogLine]) -> tuple[JobInLog, ...]:
    """The jobs that a log has lines of, in order: `gh run view` prints every job of a run, or every one that failed."""
    counts: dict[str, int] = {}
    failed: set[str] = set()
    several = False
    for line in lines:
        if (line.job or not several) and (line.job in counts or len(counts) < _MAX_JOBS):
            counts[line.job] = counts.get(line.job, 0) + 1
            several = several or line.job != ""
        if line.text.startswith(b"##[error]") and _FAILED.match(line.text):
            failed.add(line.job)
    if several:
        counts.pop("", None)  # what stood around the log where it was copied from
    return tuple(JobInLog(name, count, name in failed) for name, count in counts.items())


def _column_text(column: bytes) -> str:
    return printable(column.decode("utf-8", "replace"))


def _seconds(stamp: bytes, fraction: bytes) -> float | None:
    whole = _whole_seconds(stamp)
    return None if whole is None else whole + int(fraction) / 10_000_000


@lru_cache(maxsize=4)  # a log has many lines in one second
def _whole_seconds(stamp: bytes) -> int | None:
    year, month, day, hour, minute, second = (int(part) for part in re.split(rb"[-T:]", stamp))
    try:
        return calendar.timegm((year, month, day, hour, minute, second))
    except ValueError:  # no month 13
        return None
