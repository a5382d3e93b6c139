"""Names from a host or a job are checked before they become paths."""

from __future__ import annotations

import pytest

from ci_tasks.agent.files import UnsafeName, check_absolute_path, check_line, check_relative_path

GOOD = ["junit.xml", "a b", "-rf", ".hidden", "...", "Ünïcode", "语", "~", "$HOME", "a" * 255, "x" * 250 + "ü"]
BAD = ["", ".", "..", "a\0b", "a\nb", "a\rb", "\x1b]0;title\x07", "a\x7f", "a\x9b31m", "a\u2028b", "a\udcffb", "\ud83d"]
BAD += ["a" * 256, "ü" * 128, "a/" * 64 + "a", "/".join(["a" * 200] * 20)]


@pytest.mark.parametrize("name", GOOD)
def test_the_name_of_a_file_is_taken_as_it_is(name: str) -> None:
    check_relative_path(f"artifacts/{name}")
    check_absolute_path(f"/home/{name}")


@pytest.mark.parametrize("where", ["{}/x", "x/{}/x", "x/{}"])
@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_none_is_refused_anywhere_in_a_path(name: str, where: str) -> None:
    with pytest.raises(UnsafeName):
        check_relative_path(where.format(name))
    with pytest.raises(UnsafeName):
        check_absolute_path("/" + where.format(name))


@pytest.mark.parametrize("path", ["", "/", "relative", "~/x", "//x", "/x/", "/x/../y"])
def test_an_absolute_path_is_below_the_root_and_in_its_shortest_form(path: str) -> None:
    with pytest.raises(UnsafeName):
        check_absolute_path(path)


def test_a_line_has_a_length_in_bytes() -> None:
    check_line("ü" * 5, 10)
    with pytest.raises(UnsafeName, match="at most 9 bytes"):
        check_line("ü" * 5, 9)
