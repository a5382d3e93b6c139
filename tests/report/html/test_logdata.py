"""A log → packed blocks of whole lines: nothing lost, numbers kept, memory bounded."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator

import pytest

from ci_tasks.report.html.logdata import BLOCK, LONGEST, script, shares

ELEMENT = re.compile(
    r'<script type="application/x-ci-tasks-log" data-log="(\d+)" data-first="(\d+)" data-lines="(\d+)">'
    r"([\w+/=]*)</script>\n"
)


def unpacked(elements: Iterable[str]) -> list[tuple[int, int, str]]:
    """(first, lines, text) of each, as the page's worker reads them."""
    chunks = []
    for element in elements:
        matched = ELEMENT.fullmatch(element)
        assert matched, element[:200]
        text = zlib.decompress(base64.b64decode(matched[4])).decode("utf-8", "replace")
        chunks.append((int(matched[2]), int(matched[3]), text))
    return chunks


def cut(log: bytes, size: int) -> Iterator[bytes]:
    return (log[at : at + size] for at in range(0, len(log), size))


def numbered(chunks: list[tuple[int, int, str]]) -> dict[int, str]:
    return {first + at: line for first, _, text in chunks for at, line in enumerate(text.split("\n"))}


LINES = b"".join(b"line %d \xe2\x9c\x93\n" % number for number in range(1, 40_001))


@pytest.mark.parametrize("size", [1 << 18, 70_001, 1 << 22])
def test_every_line_is_there_under_its_number_however_the_log_was_cut(size: int) -> None:
    chunks = unpacked(script(0, cut(LINES, size), len(LINES), len(LINES), None))
    assert numbered(chunks) == {number: f"line {number} ✓" for number in range(1, 40_001)}
    assert all(lines == text.count("\n") + 1 for _, lines, text in chunks)


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (b"", {}),
        (b"\n", {1: ""}),
        (b"a", {1: "a"}),
        (b"a\n\nb", {1: "a", 2: "", 3: "b"}),
        (b"a\r\nb\r\n", {1: "a", 2: "b"}),
        (b"\x1b[36m(Actor pid=1)\x1b[0m x\x1b]0;title\x07\n", {1: "(Actor pid=1) x"}),
        (b" 1%\r 2%\r\rdone\nnext\n", {1: " 1% ␍  2% ␍ done", 2: "next"}),
        (b"\r".join(b"%d%%" % number for number in range(50)), {1: " ␍ ".join(f"{n}%" for n in range(30, 50))}),
        (b"\xff\x00</script>\n", {1: "\ufffd\x00</script>"}),
    ],
)
def test_lines_are_counted_at_newlines_and_lose_what_moves_a_cursor(log: bytes, lines: dict[int, str]) -> None:
    assert numbered(unpacked(script(0, [log], len(log), len(log), None))) == lines


def test_a_line_without_an_end_keeps_its_beginning_and_end_in_bounded_memory() -> None:
    pieces = (b"x" * (1 << 20) for _ in range(200))
    (first, _, text), *more = unpacked(script(0, (*pieces, b"end\nlast\n"), 1, 1, None))
    assert (first, more) == (1, [])
    line, last = text.split("\n")
    assert len(line) < 2 * LONGEST
    assert re.fullmatch(r"x+ … [\d,]+ bytes of this line are left out … end", line)
    assert last == "last"


@pytest.mark.parametrize("failing_line", [None, 20_000])
def test_of_a_log_beyond_the_limit_a_gap_is_named_and_numbers_go_on(failing_line: int | None) -> None:
    log = b"".join(b"line %07d %s\n" % (number, b"x" * 485) for number in range(1, 40_001))
    chunks = unpacked(script(0, cut(log, 1 << 17), len(log), 3_000_000, failing_line))
    gaps = [(first, text) for first, _, text in chunks if "are left out here" in text]
    kept = numbered([chunk for chunk in chunks if "are left out here" not in chunk[2]])
    assert len(gaps) == (2 if failing_line else 1)
    assert all(text.startswith(f"line {number:07d} ") for number, text in kept.items())
    assert {1, 40_000, failing_line or 1} <= set(kept)
    missing = sum(int(re.findall(r"… ([\d,]+) lines", text)[0].replace(",", "")) for _, text in gaps)
    assert missing == 40_000 - len(kept)
    assert sum(len(text) for text in kept.values()) < 3_000_000 + 6 * BLOCK


@pytest.mark.parametrize(
    ("sizes", "granted"),
    [([], []), ([5], [5]), ([50], [10]), ([2, 50, 50], [2, 10, 10]), ([4, 9, 9, 9], [4, 7, 7, 7]), ([0, 9], [0, 9])],
)
def test_what_small_logs_leave_over_goes_to_the_large_ones(sizes: list[int], granted: list[int]) -> None:
    assert shares(sizes, each=10, total=25) == granted
