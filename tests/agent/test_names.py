"""Names of a host or a job: what can be a path here, and what leads elsewhere or cannot be shown."""

from __future__ import annotations

import pytest

from ci_tasks.agent.names import UnsafeName, check_absolute_path, check_line, check_name, check_relative_path

GOOD = ["junit.xml", "a b", "-rf", ".hidden", "...", "Ünïcode", "语", "~", "$HOME", "a" * 255, "x" * 250 + "ü"]
BAD = {
    "nothing": "",
    "here": ".",
    "above": "..",
    "a path": "a/b",
    "the root": "/",
    "NUL": "a\0b",
    "a newline": "a\nb",
    "a carriage return": "a\rb",
    "an escape sequence": "\x1b]0;title\x07",
    "DEL": "a\x7f",
    "a C1 control": "a\x9b31m",
    "a line separator": "a\u2028b",
    "bytes that are no UTF-8": "a\udcffb",
    "half of a character": "\ud83d",
    "too long": "a" * 256,
    "too long in bytes": "ü" * 128,
}
BAD_PATHS = {
    "absolute": "/etc/passwd",
    "above": "artifacts/../../x",
    "nothing between": "artifacts//x",
    "a dot": "artifacts/./x",
    "a slash at the end": "artifacts/",
    "too deep": "a/" * 64 + "a",
    "too long": "/".join(["a" * 200] * 20),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_name_of_a_file_is_taken_as_it_is(name: str) -> None:
    assert check_name(name) == name
    assert check_relative_path(f"artifacts/{name}") == f"artifacts/{name}"
    assert check_absolute_path(f"/home/{name}") == f"/home/{name}"


@pytest.mark.parametrize("what", BAD)
def test_a_name_that_is_none_is_refused(what: str) -> None:
    with pytest.raises(UnsafeName):
        check_name(BAD[what])


@pytest.mark.parametrize("what", [what for what in BAD if what not in ("a path", "the root")])
@pytest.mark.parametrize("where", ["{}/x", "x/{}/x", "x/{}"])
def test_it_is_refused_anywhere_in_a_path(what: str, where: str) -> None:
    with pytest.raises(UnsafeName):
        check_relative_path(where.format(BAD[what]))
    with pytest.raises(UnsafeName):
        check_absolute_path("/" + where.format(BAD[what]))


@pytest.mark.parametrize("what", BAD_PATHS)
def test_a_path_that_leads_elsewhere_is_refused(what: str) -> None:
    with pytest.raises(UnsafeName):
        check_relative_path(BAD_PATHS[what])


@pytest.mark.parametrize("path", ["", "/", "relative", "~/x", "//x", "/x/", "/x/../y"])
def test_an_absolute_path_is_below_the_root_and_in_its_shortest_form(path: str) -> None:
    with pytest.raises(UnsafeName):
        check_absolute_path(path)


def test_a_line_has_a_length_in_bytes() -> None:
    assert check_line("ü" * 5, 10) == "ü" * 5
    with pytest.raises(UnsafeName, match="longer than 9 bytes"):
        check_line("ü" * 5, 9)
