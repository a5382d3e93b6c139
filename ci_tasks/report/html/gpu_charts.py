"""What the GPUs of a row did while it ran: a small drawing for each quantity, a line for each GPU, and the peaks as a
table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import GpuSample
from ci_tasks.records import GpuPeaks, GpuUse
from ci_tasks.report.html.templates import template
from ci_tasks.report.html.words import clock, number, ticks, time_step

_WIDTH, _HEIGHT = 440, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 10, 26
_STYLES = 6
_MOST_TICKS = 4  # of time
_MOST_POINTS = 200  # of a line
_MIB_PER_GIB = 1024
_OTHERS = "ci"  # the style of what is not the run's

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class RowGpus:
    """A row's GPUs: `samples` by UUID in order of time, and what they show together."""

    row: str
    use: GpuUse
    samples: Mapping[str, Sequence[GpuSample]]


@dataclass(frozen=True)
class GpuChart:
    """A quantity as gpus.html.j2 draws it. `lines` are (style, points); `grid` and `times` are places with their
    words."""

    key: str
    name: str
    description: str
    grid: list[tuple[float, str]]
    times: list[tuple[float, str]]
    lines: list[tuple[str, str]]


@dataclass(frozen=True)
class GpuFigure:
    row: str
    seconds: str
    legend: list[tuple[str, str]]
    charts: list[GpuChart]
    oddities: Sequence[str]
    not_seen: Sequence[str]
    lines: list[tuple[str, ...]]


@dataclass(frozen=True)
class _Quantity:
    """`mean`: of several samples that share a point, else the highest counts. `most`: where the scale ends at least."""

    name: str
    value: Callable[[GpuSample], float | None]
    mean: bool = False
    most: float = 0.0


_QUANTITIES = (
    _Quantity("Memory in use, GiB", lambda one: None if one.used is None else one.used / _MIB_PER_GIB),
    _Quantity("Utilization, %", lambda one: one.utilization, mean=True, most=100.0),
    _Quantity("Power, W", lambda one: one.watts),
    _Quantity("Temperature, °C", lambda one: one.celsius),
)


def gpu_charts(rows: Sequence[RowGpus]) -> str:
    return template("gpus.html.j2").render(
        figures=[_figure(row, f"gpus{at}") for at, row in enumerate(rows)],
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
    )


def _figure(row: RowGpus, key: str) -> GpuFigure:
    start = min(several[0].t for several in row.samples.values())
    seconds = max(max(one.t + one.seconds for one in several) for several in row.samples.values()) - start
    styles = {uuid: f"s{min(at, _STYLES)}" for at, uuid in enumerate(row.samples)}
    legend = [(styles[uuid], f"GPU {several[0].gpu}") for uuid, several in row.samples.items()]
    others = any(peaks.others for peaks in row.use.gpus)
    drawn = [_chart(quantity, row, styles, start, seconds, f"{key}-{at}") for at, quantity in enumerate(_QUANTITIES)]
    return GpuFigure(
        row=row.row,
        seconds=clock(seconds),
        legend=[*legend, *([(_OTHERS, "memory of others")] if others else [])],
        charts=[chart for chart in drawn if chart is not None],
        oddities=row.use.oddities,
        not_seen=row.use.not_seen,
        lines=[_line(peaks) for peaks in row.use.gpus],
    )


def _chart(
    quantity: _Quantity, row: RowGpus, styles: Mapping[str, str], start: float, seconds: float, key: str
) -> GpuChart | None:
    """None where nvidia-smi did not say it."""
    lines = [(styles[uuid], points(several, quantity.value, quantity.mean)) for uuid, several in row.samples.items()]
    if quantity is _QUANTITIES[0]:
        lines += [(_OTHERS, points(several, _memory_of_others)) for several in row.samples.values()]
    lines = [(style, line) for style, line in lines if line]
    if not lines:
        return None
    high = max([quantity.most, *(value for _, line in lines for _, value in line)]) * 1.02 or 1.0

    step = time_step(seconds, _MOST_TICKS)

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at - start) / max(seconds, 0.1)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / high

    return GpuChart(
        key=key,
        name=quantity.name,
        description=f"{quantity.name} of {row.row} over {clock(seconds)}; the table below has the peaks",
        grid=[(y(tick), number(tick)) for tick in ticks(0.0, high)],
        times=[(x(start + at * step), clock(at * step)) for at in range(int(seconds / step) + 1)],
        lines=[(style, " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line)) for style, line in lines],
    )


def points(several: Sequence[GpuSample], value: Callable[[GpuSample], float | None], mean: bool = False) -> Points:
    """At most some 200 points of a line: of samples that share one the highest, or the mean."""
    known = [(one.t, found) for one in several if (found := value(one)) is not None]
    size = -(-len(known) // _MOST_POINTS) or 1
    groups = [known[at : at + size] for at in range(0, len(known), size)]
    return [
        (group[0][0], sum(one for _, one in group) / len(group) if mean else max(one for _, one in group))
        for group in groups
    ]


def _memory_of_others(sample: GpuSample) -> float | None:
    """None where nobody else is shown to have any."""
    held = sum(process.memory or 0 for process in sample.processes if process.owner == "other")
    return held / _MIB_PER_GIB if held else None


def _line(peaks: GpuPeaks) -> tuple[str, ...]:
    memory = "–" if peaks.used is None else number(peaks.used / _MIB_PER_GIB)
    total = "" if peaks.total is None else f" of {number(peaks.total / _MIB_PER_GIB)}"
    return (
        f"GPU {peaks.gpu}",
        f"{memory}{total}",
        "–" if peaks.others is None else number(peaks.others / _MIB_PER_GIB),
        _value(peaks.utilization),
        _value(peaks.watts),
        _value(peaks.celsius),
        _value(peaks.sm_mhz),
        ", ".join(f"{reason} {clock(seconds)}" for reason, seconds in peaks.slowed.items()) or "–",
        _value(peaks.uncorrected),
    )


def _value(value: float | None) -> str:
    return "–" if value is None else number(value)
