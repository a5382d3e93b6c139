"""Of a long progress bar the end is kept."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial

import pytest

from ci_tasks.features.ci_logs.sources.bounded_lines import MAX_LINE_BYTES, bounded_lines


def chunks(text: bytes) -> Iterator[bytes]:
    return iter(partial(io.BytesIO(text).read, 1 << 18), b"")


@pytest.mark.parametrize("writes", [5_000, 500_000])
def test_of_a_progress_bar_the_end_is_kept(writes: int) -> None:
    [line, after] = bounded_lines(chunks(b"Downloading 0%\r" * writes + b"Downloading 100%\nnext\n"))
    assert (line.endswith(b"%\rDownloading 100%"), len(line), after) == (True, MAX_LINE_BYTES, b"next")
