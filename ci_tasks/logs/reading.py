"""What a run's log says of its tests, GPUs, containers and metrics: read once, and kept beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field

from ci_tasks import __version__
from ci_tasks.agent.codec import from_json, to_json
from ci_tasks.agent.files import open_file, read_file, replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import LineReader, read, segments, shown, visible
from ci_tasks.logs.metrics import Series, SeriesReader, slime_metrics
from ci_tasks.registry import metric_formats

FILE = "reading.json"  # beside the log
_PIECE = 1 << 18
_LARGEST = 1 << 23  # bytes of the file; what would be larger is read again
# The last line of a pytest session; `-q` leaves the bars out.
_PYTEST = re.compile(
    rb"^(?:=+ )?(?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)\b.*|no tests ran)"
    rb" in \d[\d.]*s\b"
)
_COUNT = re.compile(rb"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_UNITTEST = re.compile(rb"^Ran (\d+) tests? in [\d.]+s")
_UNITTEST_END = re.compile(rb"^(?:OK|FAILED) \(((?:[a-z ]+=\d+(?:, )?)+)\)$")
_KEPT_METRICS = 200  # names; a trainer that makes up new ones has no end of them
_ACQUIRED = re.compile(rb"Acquired GPUs: ([\d,]+)")
_BLOCKED = re.compile(rb"^ci-tasks: blocked: (.*)")
# The last is what docker logs when its daemon dies while a container runs.
_DAEMON = re.compile(
    rb"^(?:docker|podman|Error): .*|^.*Cannot connect to the Docker daemon.*|^.*\berror waiting for container: .*"
)
# What srun says of an option that it, or pyxis, does not know, or not so.
_SRUN = re.compile(
    rb"^srun: (?:unrecognized|invalid|ambiguous) option.*|^srun: option '.*|^srun: option requires an argument.*"
    rb"|^srun: error: (?:spank|pyxis|Invalid argument)\b.*\boption\b.*"
)
# Each line that says any of the above has one of these. Colours are between words, and a line that is written over, or
# has other sequences of a terminal, may say anything.
_COLOUR = rb"(?:\x1b\[[0-9;?]*[ -/]*[@-\x7e])*"  # `~` in the words below
_WORDS = b"(?m:%b)" % b"|".join(
    [
        rb"^~(?:=+~ ~)?(?:\d+~ |no~ ~tests~ ~ran)",
        rb"^~(?:Ran~ ~\d|(?:OK|FAILED)~ ~\(|(?:ci-tasks|docker|podman|Error|srun)~:~ )",
        rb"(?:step|rollout|eval)~ ~\d+~:~ ?~\{",
        rb"Acquired~ ~GPUs~:~ |Cannot~ ~connect~ ~to~ ~the~ ~Docker~ ~daemon|error~ ~waiting~ ~for~ ~container~:~ ",
        rb"\r[^\n]|\x1b[^\[\n]",
    ]
).replace(b"~", _COLOUR)


@dataclass
class LogFacts:
    """What a log says. Line numbers are 1-based; `values` is what each metric was when it was last logged."""

    pytest: dict[str, int] | None = None
    unittest: int | None = None
    unittest_skipped: int = 0
    unittest_failed: int = 0
    metrics: int = 0
    values: dict[str, float] = field(default_factory=dict)
    gpu_ids: tuple[int, ...] = ()
    blocked: str = ""
    daemon: str = ""
    srun: str = ""
    last_line: tuple[int, str] | None = None


class FactsReader(LineReader):
    """Reads the facts of a log."""

    words = _WORDS

    def __init__(self) -> None:
        self.facts = LogFacts()

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        _evidence(self.facts, visible(segments(line)[-1]).encode())
        return True  # the same words with other numbers count too

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        said = ((number, text) for number, line in reversed(tail) if (text := shown(line)).strip())
        self.facts.last_line = next((pair for pair in said if not pair[1].startswith("##[")), None)


def _evidence(facts: LogFacts, line: bytes) -> None:
    if parsed := slime_metrics(line):
        facts.metrics += 1
        for name, value in parsed[1].items():
            if len(facts.values) < _KEPT_METRICS or name in facts.values:
                facts.values[name] = value
    if found := _PYTEST.match(line):
        counts = facts.pytest or {}
        for number, word in _COUNT.findall(line):
            key = word.decode().removesuffix("s") if word == b"errors" else word.decode()
            counts[key] = counts.get(key, 0) + int(number)
        facts.pytest = counts
    if found := _UNITTEST.match(line):
        facts.unittest = (facts.unittest or 0) + int(found[1])
    if facts.unittest is not None and (found := _UNITTEST_END.match(line)):
        counted = dict(part.split(b"=") for part in found[1].split(b", "))
        facts.unittest_skipped += int(counted.get(b"skipped", 0))
        facts.unittest_failed += int(counted.get(b"failures", 0)) + int(counted.get(b"errors", 0))
    if found := _ACQUIRED.search(line):
        facts.gpu_ids = tuple(int(number) for number in found[1].split(b",") if number)
    if found := _BLOCKED.match(line):
        facts.blocked = shown(found[1])
    if not facts.srun and _SRUN.match(line):
        facts.srun = shown(line)
    if _DAEMON.match(line):
        facts.daemon = shown(line)


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
    """The same for a log that may be read already, or may grow. Nothing is written. Raises OSError."""
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
