"""A log → the lines that the page shows: nothing lost up to the limit, numbers kept, memory bounded."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from ci_tasks.report.html.logdata import LONGEST, shares, shown_lines


def shown(pieces: Iterable[bytes], size: int, keep: int, failing_line: int | None = None) -> list[str]:
    return "".join(shown_lines(pieces, size, keep, failing_line, "here")).split("\n")[:-1]


def whole(log: bytes) -> list[str]:
    return shown([log], len(log), len(log))


def cut(log: bytes, size: int) -> Iterator[bytes]:
    return (log[at : at + size] for at in range(0, len(log), size))


LINES = b"".join(b"line %d \xe2\x9c\x93\n" % number for number in range(1, 10_001))


def test_every_line_is_there_under_its_number_however_the_log_was_cut() -> None:
    expected = [f"{number:7d} line {number} ✓" for number in range(1, 10_001)]
    for size in (1 << 18, 70_001, 13):
        assert shown(cut(LINES, size), len(LINES), len(LINES)) == expected, size


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\x1b[36m(Actor pid=1)\x1b[0m x\x1b]0;title\x07\n", ["(Actor pid=1) x"]),
        (b" 1%\r 2%\r\rdone\nnext\n", [" 1% ␍  2% ␍ done", "next"]),
        (b"\r".join(b"%d%%" % number for number in range(50)), [" ␍ ".join(f"{n}%" for n in range(30, 50))]),
        ("\xff\x00</pre>\u202e&".encode(), ["ÿ�&lt;/pre&gt;�&amp;"]),
    ],
)
def test_lines_are_counted_at_newlines_and_are_text_that_moves_no_cursor(log: bytes, lines: list[str]) -> None:
    assert whole(log) == [f"{number:7d} {line}" for number, line in enumerate(lines, 1)]


def test_a_line_without_an_end_is_cut_in_bounded_memory() -> None:
    pieces = (b"x" * (1 << 18) for _ in range(200))
    tracemalloc.start()
    try:
        lines = shown(_then(pieces, b"end\nlast\n"), 1, 1)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert lines == [f"      1 {'x' * LONGEST} … cut", "      2 last"]


def _then(pieces: Iterable[bytes], last: bytes) -> Iterator[bytes]:
    yield from pieces
    yield last


@pytest.mark.parametrize("failing_line", [None, 20_000])
def test_of_a_log_beyond_the_limit_each_gap_is_named_and_numbers_go_on(failing_line: int | None) -> None:
    log = b"".join(b"line %07d %s\n" % (number, b"x" * 485) for number in range(1, 40_001))
    lines = shown(cut(log, 1 << 17), len(log), 3_000_000, failing_line)
    gaps = [int(found[1].replace(",", "")) for line in lines if (found := re.match(r"… ([\d,]+) lines left out", line))]
    kept = {int(found[1]): found[2] for line in lines if (found := re.search(r"(\d+) line 0*(\d+) ", line))}
    assert len(gaps) == (2 if failing_line else 1)
    assert all(str(number) == text for number, text in kept.items())
    assert {1, 40_000, failing_line or 1} <= set(kept)
    assert sum(gaps) == 40_000 - len(kept)
    assert 3_000_000 <= 500 * len(kept) < 3_300_000
    marked = [line for line in lines if "<mark" in line]
    assert [line[:41] for line in marked] == (['<mark id="here">  20000 line 0020000 xxxx'] if failing_line else [])


@pytest.mark.parametrize(
    ("sizes", "granted"),
    [([], []), ([5], [5]), ([50], [10]), ([2, 50, 50], [2, 10, 10]), ([4, 9, 9, 9], [4, 7, 7, 7]), ([0, 9], [0, 9])],
)
def test_what_small_logs_leave_over_goes_to_the_large_ones(sizes: list[int], granted: list[int]) -> None:
    assert shares(sizes, each=10, total=25) == granted
