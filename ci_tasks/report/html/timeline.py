"""Rows over the GPUs that they held, in time: a drawing for each batch and host, and the same as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Event
from ci_tasks.errors import counted
from ci_tasks.report.html.templates import template
from ci_tasks.report.html.words import clock, time_step

_WIDTH, _GUTTER, _LANE, _TOP = 1000, 90, 28, 8
_LETTER = 6.7  # average width of one at the drawing's font size
_MOST_TICKS = 9


@dataclass(frozen=True)
class Bar:
    """A row's time. `began`, `held` and `ended` are in seconds since the epoch: when it started, when it had its GPUs
    (None where it never had or needed any), and its end, or when it was last heard of. `phases` are (seconds, what
    began then); `batch` is what was drawn together."""

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
class DrawnBar:
    """A bar in one lane: from `before` on the row started, from `x` on it held the GPU."""

    description: str
    label: str
    kind: str
    y: int
    before: float
    x: float
    width: float


@dataclass(frozen=True)
class TimelineFigure:
    """A batch on a host as timeline.html.j2 draws it; `lines` are the table's."""

    title: str
    description: str
    height: int
    ticks: list[tuple[float, str]]
    names: list[tuple[int, str]]
    bars: list[DrawnBar]
    lines: list[tuple[str, ...]]


def timeline(bars: Sequence[Bar]) -> str:
    """The section's content; says so where no row ran."""
    groups: dict[tuple[str, str], list[Bar]] = {}
    for bar in bars:
        groups.setdefault((bar.batch, bar.host), []).append(bar)
    figures = [_figure(*name, group) for name, group in groups.items()]
    return template("timeline.html.j2").render(figures=figures, width=_WIDTH, gutter=_GUTTER, top=_TOP, lane=_LANE)


def lanes(bars: Sequence[Bar]) -> dict[str, list[Bar]]:
    """Lane → its bars: one lane for each GPU, then as many as needed for rows without one that ran side by side."""
    by_gpu: dict[str, list[Bar]] = {
        f"GPU {gpu}": [bar for bar in bars if gpu in bar.gpus]
        for gpu in sorted({gpu for bar in bars for gpu in bar.gpus})
    }
    free: list[list[Bar]] = []
    for bar in sorted((bar for bar in bars if not bar.gpus), key=lambda bar: bar.began):
        lane = next((lane for lane in free if lane[-1].ended <= bar.began), None)
        if lane is None:
            lane = []
            free.append(lane)
        lane.append(bar)
    named = {f"no GPU {number}" if len(free) > 1 else "no GPU": lane for number, lane in enumerate(free, 1)}
    return {**by_gpu, **named}


def _figure(batch: str, host: str, bars: Sequence[Bar]) -> TimelineFigure:
    start = min(bar.began for bar in bars)
    seconds = max(max(bar.ended for bar in bars) - start, 0.1)
    by_lane = lanes(bars)
    scale = (_WIDTH - _GUTTER - 10) / seconds
    gpus = sum(name.startswith("GPU") for name in by_lane)
    many = counted(len(bars), "row")
    step = time_step(seconds, _MOST_TICKS)
    return TimelineFigure(
        title=f"{many} of {batch} on {host}, over {f'{gpus} GPUs' if gpus else 'time'}",
        description=_description(bars, start),
        height=_TOP + _LANE * len(by_lane) + 26,
        ticks=[(_GUTTER + at * step * scale, clock(at * step)) for at in range(int(seconds / step) + 1)],
        names=[(_TOP + at * _LANE, name) for at, name in enumerate(by_lane)],
        bars=[_bar(bar, _TOP + at * _LANE, start, scale) for at, lane in enumerate(by_lane.values()) for bar in lane],
        lines=_table(bars, start),
    )


def _bar(bar: Bar, y: int, start: float, scale: float) -> DrawnBar:
    held = bar.began if bar.held is None else bar.held
    width = max(2.0, (bar.ended - held) * scale)
    return DrawnBar(
        description=f"{bar.row}: {bar.status}, {clock(bar.ended - held)}",
        label=_label(bar.row, int((width - 10) / _LETTER)),
        kind=bar.status if bar.status in ("passed", "failed", "blocked", "vacuous") else "other",
        y=y,
        before=_GUTTER + (bar.began - start) * scale,
        x=_GUTTER + (held - start) * scale,
        width=width,
    )


def _label(row: str, width: int) -> str:
    """What of a row's name stands in `width` letters: rows of one label differ in what their brackets say."""
    name = row if len(row) <= width or not row.endswith("]") else row.rpartition("[")[2][:-1]
    if len(name) <= width:
        return name
    return name[: width - 1] + "…" if width > 3 else ""


def _description(bars: Sequence[Bar], start: float) -> str:
    return "; ".join(
        f"{bar.row}: {bar.status}, from {clock(bar.began - start)} to {clock(bar.ended - start)}"
        + (f" on GPU {_list(bar.gpus)}" if bar.gpus else "")
        for bar in bars[:50]
    )


def _table(bars: Sequence[Bar], start: float) -> list[tuple[str, ...]]:
    return [
        (
            bar.row,
            bar.status,
            _list(bar.gpus) or "–",
            clock(bar.began - start),
            "–" if bar.held is None else clock(bar.held - start),
            clock(bar.ended - start),
            "; ".join(f"{what} at {clock(max(0.0, at - start))}" for at, what in bar.phases) or "–",
        )
        for bar in bars
    ]


def _list(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus))


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
