"""A log's metric lines → series over steps: slime's and verl's rewards, KL, log-probs, gradients and losses.

A log may hold several trainings, one after another (save, then resume). A series begins a new part if its step does not
continue, so that two trainings are not drawn as one line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import LineReader, read, segments, visible
from ci_tasks.registry import MetricFormat

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
_WORDS = rb"(?:step|rollout|eval) \d+: ?\{"
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
        self.words = b"|".join([_WORDS, *(metric_format.words for metric_format in formats)])
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
