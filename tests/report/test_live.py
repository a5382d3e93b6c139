"""The table that changes in place, as a terminal of 60 columns shows it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ci_tasks.model import EXIT_CODES
from ci_tasks.report.live import Lane, live, style


def shown(lanes: list[Lane], height: int = 24) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=60, height=height, color_system=None).print(live("ppo on local", lanes, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_whole_table() -> None:
    lanes = [
        Lane("first", "passed", 61.4, "2 tests"),
        Lane("second", "running", 3.0, "step 1 [loss=2]\nof 2"),
        Lane("third", "waiting"),
    ]
    assert shown(lanes) == [
        "ppo on local",
        "STATUS     ROW                 TIME  LAST",
        "passed     first               61 s  2 tests",
        "running    second               3 s  step 1 [loss=2] of 2",
        "waiting    third",
        "1 passed, 1 running, 1 waiting",
    ]


def test_no_row() -> None:
    assert shown([])[:2] == ["ppo on local", "STATUS     ROW                 TIME  LAST"]


def test_of_many_rows_those_that_went_wrong_and_those_that_run_are_shown() -> None:
    lanes = [Lane(f"row{number}", "passed", 1.0) for number in range(50)]
    lanes[20], lanes[30], lanes[40] = Lane("bad", "failed", 1.0), Lane("busy", "running", 1.0), Lane("next", "waiting")
    lines = shown(lanes, height=10)
    assert len(lines) <= 10
    assert [line.split()[:2] for line in lines[2:6]] == [
        ["passed", "row0"],
        ["failed", "bad"],
        ["running", "busy"],
        ["waiting", "next"],
    ]
    assert lines[6].split() == ["and", "46", "more"]
    assert lines[7] == "47 passed, 1 failed, 1 running, 1 waiting"


def test_rows_that_look_alike_are_each_shown_once() -> None:
    assert sum(line.startswith("passed") for line in shown([Lane("same", "passed", 1.0)] * 10, height=12)) == 6


def test_long_and_wide_text_stays_on_its_line() -> None:
    lines = shown([Lane("日本" * 40, "running", 5.0, "x" * 300)])
    assert len(lines) == 4 and lines[2].startswith("running    日本日本")


@pytest.mark.parametrize("state", [*EXIT_CODES, "running", "waiting"])
def test_every_state_has_a_style(state: str) -> None:
    assert style(state)


def test_an_unknown_state_has_none_and_is_still_shown() -> None:
    assert style("odd") == "" and shown([Lane("r", "odd")])[2].split() == ["odd", "r"]
