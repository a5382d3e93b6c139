"""A log in any of its forms → lines without CI's prefix."""

from __future__ import annotations

import itertools

import pytest

from ci_tasks.logs.job_lines import LogLine, split_lines

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
