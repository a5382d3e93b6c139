"""Metric curves: one drawing for each metric of a row, its runs and CI's in it, and the same as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.report.html.templates import template
from ci_tasks.report.html.words import number, ticks

Points = Sequence[tuple[int, float]]
Scale = Callable[[float], float]  # a value → where it is drawn
CI = "CI"
_WIDTH, _HEIGHT = 440, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 30
_STYLES = 6  # lines that are told apart, by colour, dashes and marks; further ones are all alike
_FEW = 60  # points up to which each has a mark
_MOST_LINES = 1000  # of a table


@dataclass(frozen=True)
class Curve:
    """One metric in one log: `source` says whose it is (CI, or a run), each of `parts` is one training's points."""

    family: str
    name: str
    source: str
    parts: Sequence[Points]


@dataclass(frozen=True)
class Line:
    """A training of a curve: its points in pieces without a gap, its marks (x, y, words), and where it has no finite
    value (x, words, steps)."""

    style: str
    pieces: list[str]
    marks: list[tuple[float, float, str]]
    odd: list[tuple[float, str, str]]


@dataclass(frozen=True)
class Figure:
    """A metric as curves.html.j2 draws it. `key` makes ids unique; `alike` are curves that the legend leaves out."""

    key: str
    name: str
    family: str
    title: str
    description: str
    legend: list[tuple[str, str]]
    alike: int
    grid: list[tuple[float, float]]
    steps: list[tuple[float, int]]
    lines: list[Line]
    note: str
    columns: list[str]
    values: list[list[str]]


def figures(row: str, curves: Sequence[Curve], key: str) -> str:
    """The drawings of a row, a metric each, in the order in which the metrics come. `key` makes ids unique."""
    metrics: dict[str, list[Curve]] = {}
    for curve in curves:
        metrics.setdefault(curve.name, []).append(curve)
    return template("curves.html.j2").render(
        figures=[_figure(row, several, f"{key}-{at}") for at, several in enumerate(metrics.values())],
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
    )


def _figure(row: str, curves: Sequence[Curve], key: str) -> Figure:
    every = [point for curve in curves for part in curve.parts for point in part]
    finite = [value for _, value in every if math.isfinite(value)]
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    low, high = _range(finite)

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    alone = len(curves) == 1 and curves[0].source != CI
    steps, columns, values = _table(curves)
    return Figure(
        key=key,
        name=curves[0].name,
        family=curves[0].family,
        title=f"{curves[0].name} of {row} over steps",
        description=". ".join(_describe(curve) for curve in curves),
        legend=[] if alone else [(_style(at, shown), shown.source) for at, shown in enumerate(curves[: _STYLES + 1])],
        alike=len(curves) - _STYLES - 1,
        grid=[(y(tick), tick) for tick in (ticks(low, high) if finite else [])],
        steps=[(x(step), step) for step in sorted({round(tick) for tick in ticks(first, last, 5)})],
        lines=[_line(part, _style(at, curve), x, y) for at, curve in enumerate(curves) for part in curve.parts],
        note=f" (the first {_MOST_LINES:,} of {steps:,} steps)" if steps > _MOST_LINES else "",
        columns=columns,
        values=values,
    )


def _line(part: Points, style: str, x: Scale, y: Scale) -> Line:
    """A part's line, broken where a value is no finite number; that is written at the top instead."""
    finite = [(step, value) for step, value in part if math.isfinite(value)]
    groups = [(odd, [*group]) for odd, group in groupby(part, _is_odd)]
    return Line(
        style,
        [
            " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in group)
            for odd, group in groups
            if not odd and group[1:]
        ],
        [(x(at), y(value), f"step {at}: {number(value)}") for at, value in finite] if len(part) <= _FEW else [],
        [_odd(group, x) for odd, group in groups if odd],
    )


def _is_odd(point: tuple[int, float]) -> bool:
    return not math.isfinite(point[1])


def _odd(points: Points, x: Scale) -> tuple[float, str, str]:
    """Steps in a row without a finite value."""
    values = "/".join(dict.fromkeys(number(value) for _, value in points))
    first, last = points[0][0], points[-1][0]
    return (x(first) + x(last)) / 2, values, f"at step {first}" if first == last else f"from step {first} to {last}"


def _style(at: int, curve: Curve) -> str:
    return "ci" if curve.source == CI else f"s{min(at, _STYLES)}"


def _range(finite: Sequence[float]) -> tuple[float, float]:
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    margin = (high - low) * 0.06
    if margin <= 1e-12 * max(abs(low), abs(high), 1e-300):
        margin = abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _describe(curve: Curve) -> str:
    """What a person who does not see the drawing is told."""
    points = [point for part in curve.parts for point in part]
    finite = [value for _, value in points if math.isfinite(value)]
    odd = [f"{number(value)} at step {step}" for step, value in points if not math.isfinite(value)]
    many = f"{len(curve.parts)} trainings, " if len(curve.parts) > 1 else ""
    values = (
        f"from {number(finite[0])} to {number(finite[-1])}, between {number(min(finite))} and {number(max(finite))}"
        if finite
        else "no finite value"
    )
    more = f", {', '.join(odd[:3])}{' and more' if len(odd) > 3 else ''}" if odd else ""
    return f"{curve.source}: {many}{len(points)} points, {values}{more}"


def _table(curves: Sequence[Curve]) -> tuple[int, list[str], list[list[str]]]:
    """How many steps there are, the columns' names, and the values of the first steps."""
    columns = [
        (f"{curve.source}{f', training {at}' if len(curve.parts) > 1 else ''}", dict(part))
        for curve in curves
        for at, part in enumerate(curve.parts, 1)
    ]
    steps = sorted({step for _, points in columns for step in points})
    body = [
        [str(step), *(number(points[step]) if step in points else "" for _, points in columns)]
        for step in steps[:_MOST_LINES]
    ]
    return len(steps), ["Step", *(name for name, _ in columns)], body
