"""The report as one HTML page that asks for nothing, as a stream of text: what failed first, the logs last.

What a job or a person wrote is escaped wherever it is printed, and the policy in the page's head admits no script and
no style but our own, by its digest. Its charts are a few polylines in a square of 100 by 100 that the page stretches;
all words are beside them as text, so that they stay readable.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from statistics import fmean
from typing import Any

import jinja2
from markupsafe import Markup

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Event, GpuSample
from ci_tasks.errors import printable, some
from ci_tasks.logs.lines import blocks, segments, visible
from ci_tasks.logs.reading import Series
from ci_tasks.records import PLANNED, RUNNING, RunEnvironment, RunRecord, overall
from ci_tasks.report.markdown import Public
from ci_tasks.report.results import NextStep, attempts, evidence_of, failures, rows_by_deviation, took, verdict
from ci_tasks.report.table import duration
from ci_tasks.report.triage import describe, exceptions_of, numbered_context

MOST_LINES = 2000  # of a log
_ALL_LINES = 80_000  # of all logs, so that GitHub takes the page as an attachment (25 MB)
_LONGEST = 1000  # characters of a line
_SYMBOLS = {"passed": "✓", "failed": "✗", "vacuous": "∅", "blocked": "⊘", "cancelled": "■", "lost": "?"}
# They would show the text beside them in another order, or not at all.
_HIDING = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Run:
    """One row's run: its record, when it had which GPUs, its metrics with whose they are, its log as bytes, cut
    anywhere and read once, and the samples of its GPUs by UUID, as far as it has them."""

    record: RunRecord
    bar: Bar | None = None
    series: Sequence[tuple[str, Series]] = field(default_factory=tuple)
    log: Iterable[bytes] | None = None
    gpus: Mapping[str, Sequence[GpuSample]] = field(default_factory=dict)


def page(
    title: str,
    runs: Sequence[Run],
    made: str = "",
    steps: Sequence[NextStep] = (),
    places: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The page's text. `title` names the runs, `made` says at its foot when and by what, `steps` are the commands that
    come next, `places` are as in Public. Reads each log once, when its turn comes."""
    records = [run.record for run in runs]
    logs = [(run.record, run.log) for run in runs if run.log is not None]
    most = min(MOST_LINES, _ALL_LINES // max(len(logs), 1))
    metrics: dict[str, list[tuple[str, Series]]] = {}  # a row's runs share its charts
    for run in runs:
        metrics.setdefault(run.record.row, []).extend(run.series)
    style = resources.text("report/page.css")
    template = _environment(Public(records, places or {})).from_string(resources.text("report/page.html.j2"))
    return template.generate(
        title=title, made=made, steps=steps, records=records, style=Markup(style),
        style_digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        verdict=verdict(records), overall=overall([record.counted_status for record in records]),
        unfinished=any(record.status in (RUNNING, PLANNED) for record in records),
        hosts=list(dict.fromkeys(record.host for record in records if record.host)),
        checkouts=list(dict.fromkeys(record.checkout for record in records if record.checkout)),
        started=min((record.started_at for record in records if record.started_at), default="")[:19].replace("T", " "),
        failures=failures(records),
        log_of={record.id: str(at) for at, (record, _) in enumerate(logs)},
        gpus=[(run.record, charts) for run in runs if (charts := gpu_charts(run.gpus))],
        metrics=[(row, metric_charts(series)) for row, series in metrics.items() if series],
        timeline=timeline([run.bar for run in runs if run.bar is not None]),
        deviations=rows_by_deviation(records), environments=_environments(records),
        logs=[(f"{one.row}: {one.status} ({one.id})", _last_lines(log, most)) for one, log in logs],
    )  # fmt: skip


def _environment(public: Public) -> jinja2.Environment:
    def shown(value: Any) -> Any:
        """Markup is our own; all else is text."""
        if isinstance(value, (Markup, jinja2.Undefined)):
            return value
        return "" if value is None else _HIDING.sub("�", printable(public.text(str(value))))

    environment = jinja2.Environment(
        autoescape=True, finalize=shown, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        symbols=_SYMBOLS, took=took, evidence_of=evidence_of, attempts=attempts, some=some, describe=describe,
        context_of=numbered_context, exceptions_of=exceptions_of,
    )  # fmt: skip
    return environment


def _environments(records: Sequence[RunRecord]) -> list[tuple[list[RunRecord], RunEnvironment]]:
    """The machines, images and packages with the rows that had them, without what is another for each run."""
    groups: dict[str, tuple[list[RunRecord], RunEnvironment]] = {}
    for record in records:
        containers = tuple(replace(each, name="", started_at="") for each in record.environment.containers)
        lasting = replace(record.environment, containers=containers)
        groups.setdefault(repr(lasting), ([], lasting))[0].append(record)
    return list(groups.values())


def _last_lines(pieces: Iterable[bytes], most: int) -> Iterator[str]:
    """The last lines of a log with their numbers, and of a progress bar what a terminal showed last. Only as much of
    the log as has them is in memory."""
    kept: deque[tuple[bytes, int]] = deque()  # blocks, and how many lines end in each
    total = 0
    for block in blocks(pieces):
        kept.append((block, block.count(b"\n")))
        total += kept[-1][1]
        while sum(count for _, count in kept) - kept[0][1] > most:
            kept.popleft()
    lines = b"".join(block for block, _ in kept).removesuffix(b"\n").split(b"\n")
    first = total - sum(count for _, count in kept) + 1 + max(len(lines) - most, 0)
    if first > 1:
        yield f"… {first - 1:,} lines before: `ci-tasks logs RUN --raw` prints the whole log …\n"
    for number, line in enumerate(lines[-most:], first):
        text = visible(segments(line)[-1], _LONGEST + 1)
        yield f"{number:7d} {text[:_LONGEST]}{' … cut' if len(text) > _LONGEST else ''}\n"


_MOST_POINTS = 200  # of a GPU's line
_MIB_PER_GIB = 1024

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """`words` say whose line it is and between which values; each of `pieces` is the points of a polyline."""

    words: str
    pieces: list[str]


@dataclass(frozen=True)
class Chart:
    title: str
    high: str
    low: str
    first: str
    last: str
    lines: list[Line]


@dataclass(frozen=True)
class Bar:
    """A row's time. `began`, `held` and `ended` are in seconds since the epoch: when it started, when it had its GPUs
    (None if it never had or needed any), and its end, or when it was last heard of. `phases` are (seconds, what began
    then); `batch` is what was drawn together."""

    row: str
    status: str
    batch: str
    host: str
    began: float
    ended: float
    held: float | None = None
    gpus: tuple[int, ...] = ()
    phases: Sequence[tuple[float, str]] = field(default_factory=tuple)


@dataclass(frozen=True)
class TimelineRow:
    """A bar among its batch's: `waiting` and `running` are the points of polylines."""

    bar: Bar
    words: str
    waiting: str
    running: str


def _memory_of_others(sample: GpuSample) -> float | None:
    """None if no other process is shown to have any."""
    held = sum(process.memory or 0 for process in sample.processes if process.owner == "other")
    return held / _MIB_PER_GIB if held else None


_Value = Callable[[GpuSample], float | None]
# Of several samples that share a point, the highest counts: a short peak is what a person looks for.
_QUANTITIES: tuple[tuple[str, _Value, Callable[[Sequence[float]], float]], ...] = (
    ("Memory in use, GiB", lambda one: None if one.used is None else one.used / _MIB_PER_GIB, max),
    ("Memory of other processes, GiB", _memory_of_others, max),
    ("Utilization, %", lambda one: one.utilization, fmean),
    ("Power, W", lambda one: one.watts, max),
    ("Temperature, °C", lambda one: one.celsius, max),
)


def gpu_charts(samples: Mapping[str, Sequence[GpuSample]]) -> list[Chart]:
    """One for each quantity that nvidia-smi told, a line a GPU. `samples` are a row's, by UUID, in order of time;
    without samples there are no charts."""
    start = min((several[0].t for several in samples.values()), default=0.0)
    charts = []
    for title, value, joined in _QUANTITIES:
        lines = [
            (f"GPU {several[0].gpu}", _thinned([(one.t - start, value(one)) for one in several], joined))
            for several in samples.values()
        ]
        if any(points for _, points in lines):
            charts.append(_chart(title, lines, duration, from_zero=True))
    return charts


def _thinned(
    points: Iterable[tuple[float, float | None]], joined: Callable[[Sequence[float]], float]
) -> list[tuple[float, float]]:
    known = [(at, value) for at, value in points if value is not None]
    size = -(-len(known) // _MOST_POINTS) or 1
    groups = [known[at : at + size] for at in range(0, len(known), size)]
    return [(group[0][0], joined([value for _, value in group])) for group in groups]


def metric_charts(series: Iterable[tuple[str, Series]]) -> list[Chart]:
    """One for each metric, in the order in which they come; of each series its source, such as CI, is named, and of
    each training in a log its number."""
    metrics: dict[str, list[tuple[str, Points]]] = {}
    for source, each in series:
        names = [source] if len(each.parts) == 1 else [f"{source}, training {n}" for n, _ in enumerate(each.parts, 1)]
        metrics.setdefault(each.name, []).extend(zip(names, each.parts, strict=True))
    return [_chart(name, lines, lambda step: f"step {step:.0f}") for name, lines in metrics.items()]


def _chart(
    title: str, lines: Sequence[tuple[str, Points]], words: Callable[[float], str], *, from_zero: bool = False
) -> Chart:
    places = [at for _, points in lines for at, _ in points]
    finite = [value for _, points in lines for _, value in points if math.isfinite(value)]
    first, last = min(places), max(places)
    high = max(finite, default=0.0)
    low = min(0.0 if from_zero else high, min(finite, default=0.0))

    def place(at: float, value: float) -> str:
        x = (at - first) / (last - first) * 100 if last > first else 50.0
        return f"{x:.1f},{(high - value) / (high - low) * 100 if high > low else 50.0:.1f}"

    drawn = []
    for name, points in lines:
        groups = [[*group] for finite, group in groupby(points, lambda point: math.isfinite(point[1])) if finite]
        pieces = [" ".join(place(*point) for point in (group * 2 if len(group) == 1 else group)) for group in groups]
        drawn.append(Line(f"{name}: {_said(points, words)}", pieces))
    return Chart(title, number(high), number(low), words(first), words(last), drawn)


def _said(points: Points, words: Callable[[float], str]) -> str:
    """What the line shows, for readers who do not see it: its range and end, and where it has no finite value."""
    finite = [value for _, value in points if math.isfinite(value)]
    said = [f"{number(min(finite))} to {number(max(finite))}, at the end {number(finite[-1])}"] if finite else []
    odd = [f"{number(value)} at {words(at)}" for at, value in points if not math.isfinite(value)]
    return "; ".join([*said, *odd[:3], *(["…"] if odd[3:] else [])]) or "no value"


def timeline(bars: Sequence[Bar]) -> list[TimelineRow]:
    """The bars in the order of their starts, each batch's on one scale."""
    spans: dict[str, tuple[float, float]] = {}
    for bar in bars:
        start, end = spans.get(bar.batch, (bar.began, bar.ended))
        spans[bar.batch] = min(start, bar.began), max(end, bar.ended)
    return [_timeline_row(bar, *spans[bar.batch]) for bar in sorted(bars, key=lambda bar: (bar.batch, bar.began))]


def _timeline_row(bar: Bar, start: float, end: float) -> TimelineRow:
    held = bar.began if bar.held is None else bar.held
    scale = 100 / max(end - start, 0.1)
    began_at, held_at, ended_at = ((at - start) * scale for at in (bar.began, held, bar.ended))
    where = f"GPU {', '.join(map(str, bar.gpus))}" if bar.gpus else ""
    words = [" of ".join(filter(None, [where, bar.host]))]
    words.append(f"{duration(bar.began - start)} to {duration(bar.ended - start)}")
    words += [f"waited {duration(held - bar.began)}"] if held - bar.began >= 1 else []
    words += [f"{what} at {duration(max(0.0, at - start))}" for at, what in bar.phases]
    text = "; ".join(filter(None, words))
    return TimelineRow(bar, text, _stroke(began_at, held_at), _stroke(held_at, max(ended_at, held_at + 0.3)))


def _stroke(first: float, last: float) -> str:
    return f"{first:.1f},5 {last:.1f},5" if last > first else ""


def phases(events: Sequence[Event]) -> list[tuple[float, str]]:
    """What the lines of events.jsonl say a person wants to know of: (seconds since the epoch, what began)."""
    changes: list[tuple[float, str]] = []
    for event in events:
        if event.event == "waiting":
            text = "waits for GPUs"
        elif event.event == "gpus":
            text = "has its GPUs"
        else:
            text = f"{event.event} {event.name or event.image or ''}".strip()
        if not changes or changes[-1][1] != text:
            changes.append((event.t, text))
    return changes


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}".replace("-", "−")
