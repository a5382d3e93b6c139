"""What a run's log says, read once and kept beside it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from ci_tasks import __version__
from ci_tasks.agent.codec import from_json, to_json
from ci_tasks.agent.files import open_file, read_file, replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.facts import FactsReader, LogFacts
from ci_tasks.logs.lines import LineReader, read
from ci_tasks.logs.metrics import Series, SeriesReader
from ci_tasks.registry import metric_formats

FILE = "reading.json"  # beside the log
_PIECE = 1 << 18
_LARGEST = 1 << 23  # bytes of the file; what would be larger is read again


@dataclass(frozen=True)
class LogReading:
    """What one reading of a log gives."""

    facts: LogFacts
    series: tuple[Series, ...] = ()


@dataclass(frozen=True)
class _KeptReading:
    """`log` says which log was read, by which version of this program."""

    log: tuple[str, ...]
    reading: LogReading


def read_run_log(path: str, *more: LineReader) -> LogReading:
    """Read the log of an ended run once, `more` readers too, and keep what it says beside it. Of a log that is missing,
    nothing."""
    try:
        with open_file(path) as source:
            log = _identity(os.fstat(source.fileno()))
            reading = read_log(iter(lambda: source.read(_PIECE), b""), *more)
    except OSError:
        return LogReading(LogFacts())
    with suppress(OSError, TypeError):  # a full disk, or metrics that are no JSON (nan): it is read again
        content = to_json(_KeptReading(log, reading)).encode("utf-8", "backslashreplace")
        if len(content) <= _LARGEST:
            replace_file(_kept_beside(path), content)
    return reading


def reading_of(path: str) -> LogReading:
    """The same of a log that may be read already, or go on. Nothing is written. Raises OSError."""
    with open_file(path) as source:
        status = os.fstat(source.fileno())
        with suppress(OSError, ValueError):
            kept = from_json(_KeptReading, read_file(_kept_beside(path), _LARGEST), where=FILE)
            if kept.log == _identity(status):
                return kept.reading
        left = status.st_size  # it may be growing
        return read_log(source.read(min(_PIECE, left - at)) for at in range(0, left, _PIECE))


def read_log(pieces: Iterable[bytes], *more: LineReader) -> LogReading:
    """Read a log, whose bytes may be cut anywhere."""
    facts, series = FactsReader(), SeriesReader(metric_formats())
    read(pieces, facts, series, *more)
    return LogReading(facts.facts, series.series())


def _identity(status: os.stat_result) -> tuple[str, ...]:
    return (__version__, str(status.st_size), str(status.st_mtime_ns))


def _kept_beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), FILE)
