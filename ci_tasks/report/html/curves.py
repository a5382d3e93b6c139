"""Metric curves: one drawing for each metric of a row, its runs and CI's in it, and the same as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ci_tasks.report.html.words import details, esc, number, table, ticks

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


def figures(row: str, curves: Sequence[Curve], key: str) -> str:
    """The drawings of a row, a metric each, in the order in which the metrics come. `key` makes ids unique."""
    metrics: dict[str, list[Curve]] = {}
    for curve in curves:
        metrics.setdefault(curve.name, []).append(curve)
    drawn = "".join(_figure(row, several, f"{key}-{at}") for at, several in enumerate(metrics.values()))
    return f'<div class="charts">\n{drawn}</div>\n'


def _figure(row: str, curves: Sequence[Curve], key: str) -> str:
    name, family = curves[0].name, curves[0].family
    title = f"{name} of {row} over steps"
    return (
        f'<figure class="chart"><figcaption><strong>{esc(name)}</strong> <span class="muted">{esc(family)}</span>'
        f"{_legend(curves)}</figcaption>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{esc(title)}</title>'
        f'<desc id="{key}-d">{esc(". ".join(_said(curve) for curve in curves))}</desc>\n'
        f"{_drawing(curves)}</svg>\n{details('The same as a table', _table(title, curves))}</figure>\n"
    )


def _legend(curves: Sequence[Curve]) -> str:
    if len(curves) == 1 and curves[0].source != CI:
        return ""
    entries = "".join(
        f'<li><svg class="swatch" viewBox="0 0 32 10" aria-hidden="true"><line class="curve {_style(at, curve)}" '
        f'x1="1" x2="31" y1="5" y2="5"/>{_mark(16, 5, _style(at, curve))}</svg> {esc(curve.source)}</li>'
        for at, curve in enumerate(curves[: _STYLES + 1])
    )
    more = len(curves) - _STYLES - 1
    return f'<ul class="legend">{entries}{f"<li>and {more} more like the last</li>" if more > 0 else ""}</ul>'


def _drawing(curves: Sequence[Curve]) -> str:
    every = [point for curve in curves for part in curve.parts for point in part]
    finite = [value for _, value in every if math.isfinite(value)]
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    low, high = _range(finite)

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    drawn = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick in (ticks(low, high) if finite else [])
    ]
    steps = sorted({round(tick) for tick in ticks(first, last, 5)})
    drawn += [
        f'<text class="tick" x="{x(step):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{step}</text>' for step in steps
    ]
    drawn.append(f'<text class="tick" x="{_LEFT - 14}" y="{_HEIGHT - 12}" text-anchor="end">step</text>')
    for at, curve in enumerate(curves):
        style = _style(at, curve)
        for part in curve.parts:
            drawn += _line(part, style, x, y)
    return "".join(drawn)


def _line(part: Points, style: str, x: Scale, y: Scale) -> list[str]:
    """A part's line, broken where a value is no finite number; that is written at the top instead."""
    drawn: list[str] = []
    piece: list[str] = []
    for step, value in [*part, (0, math.nan)]:
        if math.isfinite(value):
            piece.append(f"{x(step):.1f},{y(value):.1f}")
            continue
        if len(piece) > 1:
            drawn.append(f'<polyline class="curve {style}" points="{" ".join(piece)}"/>')
        piece = []
    if len(part) <= _FEW:
        finite = [(step, value) for step, value in part if math.isfinite(value)]
        drawn += [_mark(x(step), y(value), style, f"step {step}: {number(value)}") for step, value in finite]
    return drawn + [_odd([*group], x) for odd, group in groupby(part, _is_odd) if odd]


def _is_odd(point: tuple[int, float]) -> bool:
    return not math.isfinite(point[1])


def _odd(points: Points, x: Scale) -> str:
    """Steps in a row without a finite value."""
    words = "/".join(dict.fromkeys(number(value) for _, value in points))
    first, last = points[0][0], points[-1][0]
    steps = f"at step {first}" if first == last else f"from step {first} to {last}"
    middle = (x(first) + x(last)) / 2
    return (
        f'<text class="nan" x="{middle:.1f}" y="{_TOP + 10}" text-anchor="middle">{words}'
        f"<title>{words} {steps}</title></text>"
    )


def _mark(x: float, y: float, style: str, said: str = "") -> str:
    title = f"<title>{said}</title>" if said else ""
    if style == "ci":
        return f'<rect class="mark {style}" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6">{title}</rect>'
    return f'<circle class="mark {style}" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>'


def _style(at: int, curve: Curve) -> str:
    return "ci" if curve.source == CI else f"s{min(at, _STYLES)}"


def _range(finite: Sequence[float]) -> tuple[float, float]:
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    room = (high - low) * 0.06
    if room <= 1e-12 * max(abs(low), abs(high), 1e-300):
        room = abs(high) * 0.1 or 1.0
    return low - room, high + room


def _said(curve: Curve) -> str:
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


def _table(title: str, curves: Sequence[Curve]) -> str:
    columns = [
        (f"{curve.source}{f', training {at}' if len(curve.parts) > 1 else ''}", dict(part))
        for curve in curves
        for at, part in enumerate(curve.parts, 1)
    ]
    steps = sorted({step for _, points in columns for step in points})
    body = [
        (str(step), *(number(points[step]) if step in points else "" for _, points in columns))
        for step in steps[:_MOST_LINES]
    ]
    note = f" (the first {_MOST_LINES:,} of {len(steps):,} steps)" if len(steps) > _MOST_LINES else ""
    return table(esc(title + note), ("Step", *(esc(name) for name, _ in columns)), body, "numbers")
