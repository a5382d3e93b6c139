"""What a log says, in one pass: the facts of its tests, GPUs and containers; and its metric lines as series over steps,
slime's and verl's rewards, KL, log-probs, gradients and losses. Of one line of metrics, how far a training is.

A log may hold several trainings, one after another (save, then resume). A series begins a new part if its step does not
continue, so that two trainings are not drawn as one line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import LineReader, read, segments, shown, visible
from ci_tasks.registry import MetricFormat, metric_formats

# The last line of a pytest session; `-q` leaves the bars out.
_PYTEST = re.compile(
    rb"^(?:=+ )?(?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)\b.*|no tests ran)"
    rb" in \d[\d.]*s\b"
)
_COUNT = re.compile(rb"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_UNITTEST = re.compile(rb"^Ran (\d+) tests? in [\d.]+s")
_PYTEST_FAILED = re.compile(rb"(?:FAILED|ERROR) [^\s:]+\.py::\S")  # of its summary: `-qq` gives no count
_UNITTEST_END = re.compile(rb"^(?:OK|FAILED) \(((?:[a-z ]+=\d+(?:, )?)+)\)$")
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
_FACT_WORDS = b"(?m:%b)" % b"|".join(
    [
        rb"^~(?:=+~ ~)?(?:\d+~ |no~ ~tests~ ~ran)",
        rb"^~(?:Ran~ ~\d|(?:OK|FAILED)~ ~\(|(?:FAILED|ERROR)~ ~\S+\.py|(?:ci-tasks|docker|podman|Error|srun)~:~ )",
        rb"(?:step|rollout|eval)~ ~\d+~:~ ?~\{",
        rb"Acquired~ ~GPUs~:~ |Cannot~ ~connect~ ~to~ ~the~ ~Docker~ ~daemon|error~ ~waiting~ ~for~ ~container~:~ ",
        rb"\r[^\n]|\x1b[^\[\n]",
    ]
).replace(b"~", _COLOUR)
_KEPT_METRICS = 200  # names; a trainer that makes up new ones has no end of them


@dataclass
class LogFacts:
    """What a log says. Line numbers are 1-based; `values` is what each metric was when it was last logged."""

    pytest: dict[str, int] | None = None
    unittest: int | None = None
    unittest_skipped: int = 0
    unittest_failed: int = 0
    pytest_failed: int = 0
    metrics: int = 0
    values: dict[str, float] = field(default_factory=dict)
    gpu_ids: tuple[int, ...] = ()
    blocked: str = ""
    daemon: str = ""
    srun: str = ""
    last_line: tuple[int, str] | None = None


class FactsReader(LineReader):
    """Reads the facts of a log."""

    words = _FACT_WORDS

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
        end = dict(part.split(b"=") for part in found[1].split(b", "))
        facts.unittest_skipped += int(end.get(b"skipped", 0))
        facts.unittest_failed += sum(int(end.get(key, 0)) for key in (b"failures", b"errors", b"unexpected successes"))
    facts.pytest_failed += bool(_PYTEST_FAILED.match(line))
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


def read_log(pieces: Iterable[bytes], *more: LineReader) -> LogReading:
    """Read a log, whose bytes may be cut anywhere."""
    facts, series = FactsReader(), SeriesReader(metric_formats())
    read(pieces, facts, series, *more)
    return LogReading(facts.facts, series.series())


# -- metrics as series over steps --------------------------------------------------------------------------------------

Points = tuple[tuple[int, float], ...]
REWARD, VALIDATION, KL = "reward", "validation", "KL"
LOG_PROBS, GRAD_NORM, LOSS = "log-prob difference", "gradient norm", "loss"
FAMILIES = (REWARD, VALIDATION, KL, LOG_PROBS, GRAD_NORM, LOSS)
MOST_POINTS = 1000  # of one part; more than a chart has pixels
_MOST_SERIES = 100
_MOST_PARTS = 20
# The first that fits decides: a KL loss is a KL.
_NAMES = (
    (VALIDATION, re.compile(r"^eval/[^/]+$|^val-core/.*(?:reward|acc|score)")),
    (REWARD, re.compile(r"(?:^|/)(?:raw_)?rewards?(?:/mean)?$|^critic/score/mean$")),
    (KL, re.compile(r"(?:^|[/_-])kl(?:_loss|_penalty|_divergence)?(?:/mean)?$")),
    (LOG_PROBS, re.compile(r"(?:log_?probs?|rollout_probs)_(?:abs_)?diff(?:[/_]mean)?$")),
    (GRAD_NORM, re.compile(r"grad_norm$")),
    (LOSS, re.compile(r"(?:^|[/_-])loss$")),
)
# slime's trainers log `step 3: {'train/loss': …}` and `rollout 3: {…}`, behind a logger's and an actor's prefix.
_SLIME_LINE = re.compile(rb"(?:^|[ \]])(?:step|rollout|eval) (\d{1,18}): ?\{")
_SLIME_VALUE = re.compile(rb"'([^'\n]{1,100})': (?:np\.float\d+\()?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))")
_METRIC_WORDS = rb"(?:step|rollout|eval) \d+: ?\{"
_LONGEST = 1 << 16  # characters of a line that are read: a step's metrics are several thousand


@dataclass(frozen=True)
class Series:
    """One metric of a log. `family` is one of FAMILIES; each of `parts` is one training's (step, value), steps rising.
    Values may be NaN or infinite, as the trainer logged them. Of a part with more than MOST_POINTS points its lows and
    highs are kept."""

    family: str
    name: str
    parts: tuple[Points, ...]


def read_series(
    pieces: Iterable[bytes], formats: tuple[MetricFormat, ...] = (), most_points: int = MOST_POINTS
) -> tuple[Series, ...]:
    """The series of a log, whose bytes may be cut anywhere; by family, then by name. One pass, in bounded memory.
    `formats` are further ways to log metrics; a part with more than `most_points` points is thinned."""
    reader = SeriesReader(formats, most_points)
    read(pieces, reader)
    return reader.series()


class SeriesReader(LineReader):
    """Reads the series of a log."""

    def __init__(self, formats: tuple[MetricFormat, ...] = (), most_points: int = MOST_POINTS) -> None:
        self.words = b"|".join([_METRIC_WORDS, *(metric_format.words for metric_format in formats)])
        self._formats, self._most_points = formats, most_points
        self._parts: dict[str, list[list[tuple[int, float]]]] = {}

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        for step, name, value in _values(line, self._formats):
            self._add(step, name, value)
        return True  # no line is boring: the same metrics with other numbers are what we want

    def _add(self, step: int, name: str, value: float) -> None:
        if name not in self._parts:
            if not family_of(name) or len(self._parts) >= _MOST_SERIES:
                return
            self._parts[name] = [[]]
        part = self._parts[name][-1]
        if part and step <= part[-1][0]:
            if part[-1] == (step, value) or len(self._parts[name]) >= _MOST_PARTS:
                return  # said twice: by an actor, and by what repeats it
            part = []
            self._parts[name].append(part)
        part.append((step, value))
        if len(part) > self._most_points:
            halved = thinned(part)
            part[:] = halved if len(halved) < len(part) else part[::2]  # thousands of NaNs need not all stay

    def series(self) -> tuple[Series, ...]:
        every = [Series(family_of(name), name, tuple(map(tuple, parts))) for name, parts in self._parts.items()]
        return tuple(sorted(every, key=lambda series: (FAMILIES.index(series.family), series.name)))


def slime_metrics(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The step and the metrics of a line as slime's trainers log it; None for another line."""
    head = _SLIME_LINE.search(line) if b"{" in line else None
    if head is None:
        return None
    values = _SLIME_VALUE.findall(line, head.end() - 1)
    return int(head[1]), {name.decode("utf-8", "replace"): float(value) for name, value in values}


def family_of(name: str) -> str:
    """Which of FAMILIES a metric belongs to, "" for none that is drawn."""
    return next((family for family, pattern in _NAMES if pattern.search(name)), "")


def thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """About half as many points: of every four the lowest and the highest, in order, so that no spike is lost. What is
    no finite number stays."""
    kept: list[tuple[int, float]] = []
    for at in range(0, len(points), 4):
        four = points[at : at + 4]
        finite = [point for point in four if math.isfinite(point[1])]
        if finite:
            ends = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])}
            four = [point for point in four if point in ends or not math.isfinite(point[1])]
        kept += four
    return kept


def _values(raw: bytes, formats: tuple[MetricFormat, ...]) -> Iterator[tuple[int, str, float]]:
    for segment in segments(raw):
        parsed = next((parsed for metric_format in formats if (parsed := metric_format.read(segment))), None)
        step, values = parsed or slime_metrics(visible(segment, _LONGEST).encode()) or (0, {})
        yield from ((step, name, value) for name, value in values.items())


# -- a line in short ---------------------------------------------------------------------------------------------------

_STEP = re.compile(rb"(step|rollout|eval)[ :](\d+)(?=:| -)")
# What a person asks for first. A minimum says less than a mean.
_HEADLINE = tuple(map(re.compile, (r"(?i)reward(?!.*(?:max|min|std))", r"(?i)\bacc", r"(?i)score/mean", r"(?i)loss$")))
_ACTOR = re.compile(r"^\(\w+ pid=\d+(?:, ip=[\w.:]+)?\) ?")


def line_summary(line: bytes, formats: tuple[MetricFormat, ...] = ()) -> str:
    """The line for a person who looks at many: metrics in short, without the actor that Ray puts in front."""
    if summary := metrics_summary(line, formats):
        return summary
    text = shown(line)
    return _ACTOR.sub("", text) or text


def metrics_summary(line: bytes, formats: tuple[MetricFormat, ...] = ()) -> str:
    """`step 12, reward 0.43` of a line of metrics; "" if it is none. `formats` are further ways to log them."""
    is_likely = b"{" in line or b" - " in line  # most lines have neither, and what follows costs more
    match = _STEP.search(line) if is_likely else None
    values = _headline_values(line, formats) if match else {}
    if match is None or not values:
        return ""
    step = f"{match[1].decode()} {int(match[2])}"
    named = [name for pattern in _HEADLINE for name in values if pattern.search(name)]
    name = named[0] if named else next(iter(values))
    is_told = named or len(values) == 1
    word = next((part for part in reversed(name.split("/")) if not part.startswith("mean")), name)
    return f"{step}, {word} {values[name]:.4g}" if is_told else f"{step}, {len(values)} metrics"


def _headline_values(line: bytes, formats: tuple[MetricFormat, ...]) -> dict[str, float]:
    if parsed := slime_metrics(visible(segments(line)[-1]).encode()):
        return parsed[1]
    return next((match[1] for metric_format in formats if (match := metric_format.read(line))), {})
