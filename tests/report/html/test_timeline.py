"""Rows over GPUs in time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from ci_tasks.agent.records import Event
from ci_tasks.report.html.timeline import Bar, lanes, phases, timeline
from ci_tasks.report.html.words import clock

START = 1_700_000_000.0


def bar(row: str, began: float, ended: float, **more: Any) -> Bar:
    return Bar(**{"row": row, "status": "passed", "batch": "b", "host": "h", "began": began, "ended": ended, **more})


def test_a_row_stands_in_the_lane_of_each_gpu_that_it_held_and_others_share_lanes_where_time_allows() -> None:
    two = bar("two", 0, 5, gpus=(3, 1))
    one, beside, later = bar("one", 0, 4), bar("beside", 1, 2), bar("later", 4, 6)
    assert lanes([two, later, one, beside]) == {
        "GPU 1": [two],
        "GPU 3": [two],
        "no GPU 1": [one, later],
        "no GPU 2": [beside],
    }
    assert lanes([one]) == {"no GPU": [one]}


def drawings(text: str) -> list[ElementTree.Element]:
    """The drawings, which are well-formed whatever rows are called."""
    parts = text.split("<svg ")[1:]
    return [ElementTree.fromstring("<svg " + part.partition("</svg>")[0] + "</svg>") for part in parts]


def test_each_batch_and_host_has_a_drawing_with_a_bar_for_each_gpu_and_a_table() -> None:
    text = timeline(
        [
            bar("ppo[<b>]", START, START + 90, held=START + 30, gpus=(0, 1), phases=[(START + 1, "step Execute")]),
            bar("lost", START, START, batch="c", status="lost"),
        ]
    )
    first, second = drawings(text)
    bars = [one for one in first.iter("rect") if "bar" in one.attrib["class"]]
    assert len(bars) == 2
    assert bars[0].attrib["class"] == "bar passed"
    assert float(bars[0].attrib["x"]) == pytest.approx(90 + 900 / 3)
    assert float(bars[0].attrib["width"]) == pytest.approx(900 * 2 / 3)
    assert "ppo[<b>]: passed, from 0 s to 90 s on GPU 0, 1" in [one.text for one in first.iter("desc")]
    assert len([one for one in second.iter("rect") if "bar" in one.attrib["class"]]) == 1
    assert "<b>" not in text
    assert "step Execute at 1 s" in text


def test_no_row_at_all_is_said() -> None:
    assert timeline([]) == "<p>No row ran.</p>\n"


@pytest.mark.parametrize("seconds", [0.001, 1, 59, 3600, 400_000, 4e7])
def test_an_axis_has_a_few_round_ticks_whatever_the_time(seconds: float) -> None:
    (drawn,) = drawings(timeline([bar("r", START, START + seconds)]))
    ticks = [one.text for one in drawn.iter("text") if one.attrib["class"] == "tick"]
    assert 1 <= len(ticks) <= 11
    assert len(set(ticks)) == len(ticks)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (4.25, "4.2 s"), (99.96, "1 min 40 s"), (120, "2 min"), (125, "2 min 05 s"), (7260, "2 h 01 min")],
)
def test_times_are_as_short_as_their_size_allows(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected


def test_phases_say_what_began_and_not_the_same_twice() -> None:
    events = [
        Event(1, "started"),
        Event(2.5, "step", name="Install"),
        Event(3, "waiting", reasons=("GPU 0: somebody",)),
        Event(4, "waiting", reasons=("GPU 0: another",)),
        Event(5, "gpus", ids=(0,)),
    ]
    assert phases(events) == [(1, "started"), (2.5, "step Install"), (3, "waits for GPUs"), (5, "has its GPUs")]
