"""Workers find what one process finds; without them, or when they end, nothing is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import re2

from ci_tasks.results.word_search import ALONE, search

LATIN1 = re2.Options()
LATIN1.encoding = re2.Options.Encoding.LATIN1
WORDS = [re.compile(rb"error|failed"), re2.compile(rb"error|failed", LATIN1)]
BLOCKS = [
    *(b"step %d\nerror %d\nfailed, then an error\n" % (n, n) for n in range(20)),
    b"step\n" * 40_000 + b"error",
    b"no word at all",
    b"\n",
    b"\xff\0error\r\xc3\xa9 failed\n" * 70_000,
]


SMALL = BLOCKS[:-1]  # the last one has more than a worker takes


def found(
    words: Any = WORDS[0], alone: int = 0, blocks: Sequence[bytes] = BLOCKS
) -> list[tuple[bytes, list[int], int]]:
    return [(text, list(begins), newlines) for text, begins, newlines in search(blocks, words, alone)]


EXPECTED = [(text, [word.start() for word in WORDS[0].finditer(text)], text.count(b"\n")) for text in BLOCKS]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The workers that are started."""
    processes: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def noted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})
    return processes


@pytest.mark.parametrize("words", WORDS, ids=["re", "re2"])
@pytest.mark.parametrize("alone", [0, 100, ALONE])
def test_workers_find_what_one_process_finds_in_the_order_of_the_blocks(
    words: Any, alone: int, started: list[subprocess.Popen[bytes]]
) -> None:
    assert found(words, alone) == EXPECTED
    assert len(started) == (0 if alone == ALONE else 2)


def test_all_of_it_is_the_workers_answer(started: list[subprocess.Popen[bytes]]) -> None:
    """They get the expression itself: ours is not asked where they answer."""

    class Unused:
        def __reduce__(self) -> Any:
            return re.compile, (WORDS[0].pattern,)

    assert found(Unused(), blocks=SMALL) == EXPECTED[: len(SMALL)]


def test_no_worker_is_left_when_the_reader_stops_early(started: list[subprocess.Popen[bytes]]) -> None:
    with closing(search(BLOCKS, WORDS[0], 0)) as searched:
        next(searched)
        assert [process.returncode for process in started] == [None, None]
    assert [process.returncode for process in started] == [-9, -9]


def test_no_block_is_lost_with_a_worker_that_ends(started: list[subprocess.Popen[bytes]]) -> None:
    results = []
    for text, begins, newlines in search(BLOCKS, WORDS[0], 0):
        results.append((text, list(begins), newlines))
        if len(results) == 5:
            started[0].kill()
    assert results == EXPECTED


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/python"])
def test_where_no_worker_can_run_one_process_searches(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert found() == EXPECTED


def test_a_worker_imports_nothing_of_the_directory_in_which_it_starts(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert found() == EXPECTED
    assert len(started) == 2
    assert not (tmp_path / "imported").exists()
