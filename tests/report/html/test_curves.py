"""Metric curves: what is drawn, and what a person who does not see it is told."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from ci_tasks.report.html.curves import CI, Curve, figures
from ci_tasks.report.html.words import number, ticks


def drawn(*curves: Curve) -> tuple[str, list[ElementTree.Element]]:
    text = figures("row", curves, "k")
    parts = [part for part in text.split("<svg ")[1:] if part.startswith('viewBox="0 0 440')]
    return text, [ElementTree.fromstring("<svg " + part.partition("</svg>")[0] + "</svg>") for part in parts]


def curve(source: str, *parts: list[tuple[int, float]], name: str = "train/loss") -> Curve:
    return Curve("loss", name, source, parts)


def lines(picture: ElementTree.Element) -> list[tuple[str, int]]:
    """(class, points) of each line."""
    return [(element.attrib["class"], len(element.attrib["points"].split())) for element in picture.iter("polyline")]


def test_ci_and_ours_are_in_one_drawing_and_told_apart_without_colour() -> None:
    text, (picture,) = drawn(curve("here", [(0, 1.0), (1, 0.5)]), curve(CI, [(0, 1.0), (1, 0.25)]))
    assert lines(picture) == [("curve s0", 2), ("curve ci", 2)]
    assert len(list(picture.iter("rect"))) == 2, "CI's marks are squares"
    assert len(list(picture.iter("circle"))) == 2
    (description,) = picture.iter("desc")
    assert description.text == (
        "here: 2 points, from 1 to 0.5, between 0.5 and 1. CI: 2 points, from 1 to 0.25, between 0.25 and 1"
    )
    assert '<th scope="row">1</th><td>0.5</td><td>0.25</td>' in text


@pytest.mark.parametrize("values", [(100.0, 101.0), (-3e-9, 5e-9), (0.0, 1e12)])
def test_a_line_uses_the_whole_height_however_small_the_change(values: tuple[float, float]) -> None:
    _, (picture,) = drawn(curve("here", [(0, values[0]), (1, values[1])]))
    (line,) = picture.iter("polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[0] - heights[1] > 0.85 * (220 - 12 - 30)


@pytest.mark.parametrize(("steps", "note"), [(2, ""), (1000, ""), (2000, "(the first 1,000 of 2,000 steps)")])
def test_a_table_that_was_cut_says_so(steps: int, note: str) -> None:
    text, _ = drawn(curve("here", [(step, 1.0) for step in range(steps)]))
    assert note in text
    assert ("(the first" in text) == bool(note)


def test_a_second_training_is_a_line_and_a_column_of_its_own() -> None:
    text, (picture,) = drawn(curve("here", [(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 4.0), (2, 5.0)]))
    assert lines(picture) == [("curve s0", 2), ("curve s0", 3)]
    assert "here, training 2" in text
    assert '<th scope="row">2</th><td></td><td>5</td>' in text


def test_a_line_breaks_where_a_value_is_nan_which_is_written_instead() -> None:
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0), (5, 1.5), (6, 1.0)]
    _, (picture,) = drawn(curve("here", points))
    assert lines(picture) == [("curve s0", 2), ("curve s0", 3)]
    assert [element.text for element in picture.iter("text") if element.attrib["class"] == "nan"] == ["NaN/∞"]
    (description,) = picture.iter("desc")
    assert (description.text or "").endswith("NaN at step 2, ∞ at step 3")


@pytest.mark.parametrize(
    "points",
    [
        [(0, 0.0)],
        [(7, math.nan)],
        [(0, 1e-300), (1, 1e-300)],
        [(0, -1e300), (1, 1e300)],
        [(step, 5.0) for step in range(2000)],
        [(10**15, 1.0), (10**15 + 1, 2.0)],
    ],
)
def test_whatever_was_logged_every_number_of_the_drawing_is_finite(points: list[tuple[int, float]]) -> None:
    text, (picture,) = drawn(curve("here", points))
    coordinates = [
        value
        for element in picture.iter()
        for name, value in element.attrib.items()
        if name in ("x", "y", "cx", "cy", "points")
    ]
    assert coordinates
    assert not any(word in value for value in coordinates for word in ("nan", "inf"))
    assert text.count("<tr>") <= 1001, "a table does not grow without end"


def test_of_many_runs_the_first_are_told_apart_and_the_others_are_counted() -> None:
    text, (picture,) = drawn(*(curve(f"run {at}", [(0, at), (1, at)]) for at in range(10)))
    assert {style for style, _ in lines(picture)} == {f"curve s{at}" for at in range(7)}
    assert "and 3 more like the last" in text


def test_names_are_text() -> None:
    text, _ = drawn(curve("<script>", [(0, 1.0)], name="a<img>&"), curve(CI, [(0, 1.0)], name="a<img>&"))
    assert "<img" not in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.5, 1]), (0.19, 0.77, [0.2, 0.4, 0.6]), (-3e-7, 3e-7, [-2e-7, 0, 2e-7]), (5, 5, [5])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("value", "expected"), [(0.28125, "0.2812"), (-1e-7, "−1e−07"), (math.inf, "∞"), (3, "3")])
def test_numbers_are_short(value: float, expected: str) -> None:
    assert number(value) == expected
