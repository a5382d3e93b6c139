"""Lines of bounded length, and which part of a long one is kept."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial

import pytest

from ci_tasks.features.ci_logs.sources.bounded_lines import MAX_LINE_BYTES, bounded_lines

MORE = 3 << 20  # more than a chunk


def chunks(text: bytes) -> Iterator[bytes]:
    return iter(partial(io.BytesIO(text).read, 1 << 18), b"")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n\n", [b"", b""]),
        (b"one\ntwo\r\n", [b"one", b"two\r"]),
        (b"no end", [b"no end"]),
        (b"\xef\xbb\xbfGitHub's first\n\xef\xbb\xbfsecond\n", [b"GitHub's first", b"\xef\xbb\xbfsecond"]),
        (b"a" * MAX_LINE_BYTES + b"\nnext\n", [b"a" * MAX_LINE_BYTES, b"next"]),
        (b"b" + b"a" * MAX_LINE_BYTES + b"\nnext\n", [b"b" + b"a" * (MAX_LINE_BYTES - 1), b"next"]),
        (b"b" + b"a" * MORE + b"\nnext\n", [b"b" + b"a" * (MAX_LINE_BYTES - 1), b"next"]),
        (b"before\nb" + b"a" * MORE, [b"before", b"b" + b"a" * (MAX_LINE_BYTES - 1)]),
        (b"only its end\r" + b"a" * MORE + b"\r\n", [b"only its end\r" + b"a" * (MAX_LINE_BYTES - 13)]),
        (b"ab\n" * 500_000, [b"ab"] * 500_000),
    ],
    ids=lambda value: "text" if isinstance(value, bytes) else "lines",
)
def test_a_line_is_cut_and_the_next_one_begins_after_it(text: bytes, lines: list[bytes]) -> None:
    assert list(bounded_lines(chunks(text))) == lines


@pytest.mark.parametrize("writes", [5_000, 500_000])
def test_of_a_progress_bar_the_end_is_kept(writes: int) -> None:
    [line, after] = bounded_lines(chunks(b"Downloading 0%\r" * writes + b"Downloading 100%\nnext\n"))
    assert (line.endswith(b"%\rDownloading 100%"), len(line), after) == (True, MAX_LINE_BYTES, b"next")


@pytest.mark.parametrize("end", range(4))
def test_a_line_that_ends_where_a_block_does_is_one_line(end: int) -> None:
    first = b"x" * 15
    lines = [first] * ((1 << 16) - 1) + [b"y" * (13 + end), b"z"]
    assert list(bounded_lines(chunks(b"\n".join(lines)))) == lines
