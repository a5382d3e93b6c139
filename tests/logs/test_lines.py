"""A log arrives in pieces of any size; what is given out does not depend on where it was cut."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs.job_lines import LogLine, split_lines
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
def test_lines_their_numbers_what_stands_before_and_the_tail_are_the_logs_wherever_it_was_cut(
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
        before = [(number, b"".join(b"%s\n" % row for row in rows[: number - 1])) for number, _ in matches]
        assert in_pieces.above == before


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


# -- a log in any of its forms → lines without CI's prefix -------------------------------------------------------------


STAMP = b"2026-01-02T03:04:05.5000000Z "
AT = 1_767_323_045.5
BOM = b"\xef\xbb\xbf"


FORMS: list[tuple[bytes, LogLine]] = [
    (STAMP + b"text\n", LogLine(1, b"text", AT)),
    (BOM + STAMP + b"text\n", LogLine(1, b"text", AT)),
    (b"a job (1, 2)\tExecute\t" + STAMP + b"text\n", LogLine(1, b"text", AT, "a job (1, 2)", "Execute")),
    (b"job\tStep\t" + BOM + STAMP + b"text\n", LogLine(1, b"text", AT, "job", "Step")),
    # What gh calls a step that it does not know is no name.
    (b"job\tUNKNOWN STEP\t" + STAMP + b"text\n", LogLine(1, b"text", AT, "job", "")),
    (b"text\n", LogLine(1, b"text")),
    # An editor has cut the space behind the timestamp of an empty line.
    (STAMP.rstrip() + b"\n", LogLine(1, b"", AT)),
    # Tabs and timestamps inside of the text are the text's own.
    (STAMP + b"a\tb\t" + STAMP + b"c\n", LogLine(1, b"a\tb\t" + STAMP + b"c", AT)),
    # Other programs write other timestamps.
    (b"2026-01-02T03:04:05Z text\n", LogLine(1, b"2026-01-02T03:04:05Z text")),
    (b"2026-99-02T03:04:05.5000000Z text\n", LogLine(1, b"text")),  # a prefix that names no moment
    (STAMP + b"\0\xff\x1b[31m\n", LogLine(1, b"\0\xff\x1b[31m", AT)),
    (b"\n", LogLine(1, b"")),
]


@pytest.mark.parametrize(("raw", "line"), FORMS)
def test_a_line_of_any_form_is_read(raw: bytes, line: LogLine) -> None:
    assert list(split_lines([raw])) == [line]
    assert next(split_lines(itertools.repeat(raw))) == line, "reading is a stream"


def test_the_first_prefix_settles_the_form_so_that_no_text_can_pretend_another() -> None:
    # `::error::a%0Ab` makes the runner write a second line without a timestamp.
    forged = b"other job\tStep\t" + STAMP + b"##[error]Process completed with exit code 9."
    lines = list(split_lines([STAMP + b"##[error]a\n", forged]))
    assert lines[1] == LogLine(2, forged)


def test_a_value_with_a_newline_goes_on_in_the_step_of_the_line_before() -> None:
    lines = list(split_lines([b"job\tStep\t" + STAMP + b"  A: 1\n", b"job\tStep\t2\n", b"elsewhere\n"]))
    assert lines[1:] == [LogLine(2, b"2", None, "job", "Step"), LogLine(3, b"elsewhere")]
