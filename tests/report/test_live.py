"""The table that changes in place, as terminals of some widths show it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.style import Style

from ci_tasks.report import live
from ci_tasks.report.live import HostProgress, ProgressTable, RowProgress, span, style


def shown(
    lanes: Sequence[RowProgress],
    height: int = 24,
    *,
    hosts: Sequence[HostProgress] = (),
    width: int = 60,
    title: str = "ppo on local",
) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, color_system=None).print(ProgressTable(title, lanes, height, hosts))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_of_many_rows_those_that_went_wrong_and_those_that_run_are_shown() -> None:
    lanes = [RowProgress(f"row{number}", "passed", 1.0) for number in range(50)]
    lanes[20], lanes[30], lanes[40] = (
        RowProgress("bad", "failed", 1.0),
        RowProgress("busy", "running", 1.0),
        RowProgress("next", "waiting"),
    )
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
    assert sum(line.startswith("passed") for line in shown([RowProgress("same", "passed", 1.0)] * 10, height=12)) == 6


def test_long_and_wide_text_stays_on_its_line() -> None:
    lines = shown([RowProgress("日本" * 14, "running", 5.0, "x" * 300)])
    assert [line for line in lines if line.startswith("running")] == ["running     5 s  " + "x" * 42 + "…"]
    assert f"    {'日本' * 14}" in lines, "a name stays whole"


def test_an_unknown_state_has_none_and_is_still_shown() -> None:
    assert style("odd") == "" and shown([RowProgress("r", "odd")])[2].split() == ["odd", "r"]


def test_of_one_host_nothing_more_is_said_than_how_its_rows_stand() -> None:
    lanes = [RowProgress("a", "running", 61.4, "step 1", "h100a", 8), RowProgress("b", "waiting", host="h100a")]
    assert shown(lanes, hosts=[HostProgress("h100a", 8)]) == shown(lanes)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 12)])
def test_a_thousand_rows_on_64_hosts_fit_the_terminal(width: int, height: int) -> None:
    rows = [
        RowProgress(f"row{number}", "running" if number < 512 else "waiting", 1.0, "x" * 300, f"h{number % 64}", 1)
        for number in range(1000)
    ]
    hosts = [HostProgress(f"h{number}", 8, up=number != 40, note="no answer" * (number == 40)) for number in range(64)]
    lines = shown(rows, height=height, hosts=hosts, width=width)
    assert len(lines) < height and all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "more hosts" in text and " more\n" in text and "512 running, 488 waiting" in text
    assert "h40 " in text and "away; no" in text  # what needs a person is never among those that are counted


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.2, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (5970, "1 h 40"), (360000, "100 h 00")]
)
def test_lengths_of_time_take_little_room(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


def test_a_colour_can_be_read_on_dark_and_on_light() -> None:
    """WCAG asks for a contrast of 3 of large or bold text, and of parts of a user interface. The first 16 colours are
    what the terminal's theme makes of them."""
    unreadable = []
    for colour in sorted({*live._STYLES.values(), live._OURS, live._QUIET}):
        foreground = Style.parse(colour).color
        assert foreground is not None and foreground.number is not None, colour
        for background in ((0, 0, 0), (255, 255, 255)):
            if foreground.number < 16 or contrast(foreground.get_truecolor(), background) < 3:
                unreadable.append((colour, background))
    assert unreadable == []


def contrast(*colours: Sequence[int]) -> float:
    darker, lighter = sorted(map(_luminance, colours))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Sequence[int]) -> float:
    red, green, blue = (c / 12.92 if (c := part / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("width", [30, 40, 80])
def test_the_last_line_leaves_room_for_the_terminals_echo_of_ctrl_c(width: int) -> None:
    """The echo stands at the end of the last line. If it wrapped, a line of the table would be left on the screen."""
    rows = [RowProgress(f"row-{state}", state, 1.0, "x" * 90) for state in sorted(live._STYLES)]
    assert len(shown(rows, width=width)[-1]) <= width - len("^C^C")
