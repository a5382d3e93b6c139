"""A log arrives in pieces of any size; what is given out does not depend on where it was cut."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs.lines import BLOCK, LONGEST, LineReader, read

WORDS = re.compile(rb"error|failed")
ROWS = [b"", b"step 1", b"error 7, then failed", b"error 8", b"10%\r20%\rfailed", b"caf\xc3\xa9 \xff error", b"ok\r"]
LINES = st.lists(st.sampled_from(ROWS), max_size=12)
CUTS = st.lists(st.integers(0, 150), max_size=8)


def cut(log: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(min(place, len(log)) for place in at), len(log)]
    return [log[begin:end] for begin, end in pairwise(places)]


class Collected(LineReader):
    """A reader that notes what it gets, and wants `after` more lines after each hit."""

    words = b"error|failed"

    def __init__(self, tells: bool = True, after: int = 0) -> None:
        self.tells, self.after, self.wanted = tells, after, 0
        self.lines: list[tuple[int, bytes]] = []
        self.above: list[tuple[int, bytes]] = []
        self.tail: list[tuple[int, bytes]] = []

    def needs_next_line(self) -> bool:
        return self.wanted > 0

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        self.wanted = self.after if WORDS.search(line) else self.wanted - 1
        self.lines.append((number, line))
        self.above.append((number, before))
        return self.tells

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        self.tail = tail


def given_out(
    pieces: Iterable[bytes], block: int = BLOCK, tells: bool = True, after: int = 0
) -> tuple[list[tuple[int, bytes]], Collected]:
    """(number, line) of each line that is looked at."""
    reader = Collected(tells, after)
    read(pieces, reader, block=block)
    return reader.lines, reader


@settings(max_examples=200)
@given(LINES, CUTS, st.integers(1, 60), st.booleans())
def test_lines_tail_and_numbers_are_those_of_the_log_wherever_it_was_cut(
    lines: list[bytes], at: list[int], block: int, ended: bool
) -> None:
    log = b"\n".join(lines) + (b"\n" if ended else b"")
    rows = log.split(b"\n")
    for after in (0, 2):
        whole, scanner = given_out([log], after=after)
        matches, in_pieces = given_out(cut(log, at), block=block, after=after)
        assert (matches, in_pieces.tail) == (whole, scanner.tail)
        hits = [(number, line) for number, line in matches if WORDS.search(line)]
        assert hits == [(number, row) for number, row in enumerate(rows, 1) if WORDS.search(row)]
        assert all(line in rows[number - 1] for number, line in in_pieces.tail)


def test_the_tail_of_a_long_log_is_short() -> None:
    log = b"".join(b"step %d\n" % n for n in range(1, 100_001))
    tail = given_out(cut(log, [1000, 700_000]))[1].tail
    assert tail[-1] == (100_000, b"step 100000")
    assert len(tail) == 30


def test_a_line_that_told_nothing_is_not_looked_at_again_with_other_digits_or_another_id() -> None:
    matches, _ = given_out([b"0 error in 7 s\n3 error in 12 s\n3 errors in 12 s\n"], tells=False)
    assert [number for number, _ in matches] == [1, 3]
    ids = b"request 9f2d1c failed\nrequest 00ab77de failed\nanswer 9f2d1c failed\n"
    assert [number for number, _ in given_out([ids], tells=False)[0]] == [1, 3]
    matches, _ = given_out([b"0 error in 7 s\n3 error in 12 s\n"], tells=True)
    assert [number for number, _ in matches] == [1, 2]


def test_such_a_line_is_given_all_the_same_to_a_reader_that_wants_it() -> None:
    class AfterThird(Collected):
        def needs_next_line(self) -> bool:
            return [number for number, _ in self.lines][-1:] == [3]

    reader = AfterThird(tells=False)
    read([b"error 1\nerror 2\nfailed\nerror 3\nerror 4\n"], reader)
    assert [number for number, _ in reader.lines] == [1, 3, 4]


def test_each_of_several_readers_gets_its_own_lines_of_one_reading() -> None:
    class Steps(Collected):
        words = b"step"

    steps, errors = Steps(), Collected()
    read(iter([b"step 1\nerr", b"or 2\nstep 3 failed\n"]), steps, errors)
    assert [number for number, _ in steps.lines] == [1, 3]
    assert errors.lines == [(2, b"error 2"), (3, b"step 3 failed")]
    assert steps.tail == errors.tail


@settings(max_examples=100)
@given(LINES, CUTS, st.integers(1, 60))
def test_what_stands_before_a_line_does_not_depend_on_the_cut(lines: list[bytes], at: list[int], block: int) -> None:
    log = b"\n".join(lines)
    above = given_out(cut(log, at), block)[1].above
    assert above == [(number, b"".join(b"%s\n" % row for row in lines[: number - 1])) for number, _ in above]


def endless(megabytes: int) -> Iterator[bytes]:
    """One line, in pieces."""
    yield b"first error "
    for _ in range(megabytes):
        yield bytes(1 << 20).replace(b"\0", b".")
    yield b"\n"
    yield b"then failed\n"


def test_a_line_of_a_hundred_megabytes_is_held_in_a_few() -> None:
    tracemalloc.start()
    try:
        matches, _ = given_out(endless(100))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [number for number, _ in matches] == [1, 2]
    assert matches[0][1].startswith(b"first error")
    assert len(matches[0][1]) <= 4 * LONGEST
    assert peak < 12 << 20


def test_of_a_progress_bar_without_end_its_last_state_is_kept() -> None:
    bar = [b"\r%7d of 9999999 MB" % n for n in range(50_000)]
    for pieces in ([*bar, b"\rdownload failed\n"], [b"".join(bar) + b"\rdownload failed"]):
        ((number, line),) = given_out(pieces)[0]
        assert number == 1
        assert line.endswith(b"\rdownload failed")
