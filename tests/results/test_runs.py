"""A run's log is read once: what it says is kept beside it, and never believed of another log. And what the last line
of a log says of a job that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import runs
from ci_tasks.results.runs import READING, last_line, read_run_log, reading_of

LOG = b"step 1: {'train/loss': 0.5}\n== 3 passed in 0.1s ==\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(LOG)
    return path


def test_what_was_read_once_is_not_read_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_run_log(str(log))
    assert first.facts.pytest == {"passed": 3}
    assert [series.parts for series in first.series] == [(((1, 0.5),),)]
    monkeypatch.setattr(runs, "read_log", None)
    assert reading_of(str(log)) == first


def test_a_log_that_changed_is_read_again(log: Path) -> None:
    read_run_log(str(log))
    log.write_bytes(LOG.replace(b"3", b"4"))
    os.utime(log, ns=(1, 1))
    assert reading_of(str(log)).facts.pytest == {"passed": 4}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "[" * 100_000, '{"log": ["1"], "reading": {"facts": {"metrics": "x"}}}']
)
def test_a_file_that_does_not_hold_a_reading_is_passed_over(log: Path, content: str) -> None:
    (log.parent / READING).write_text(content)
    assert reading_of(str(log)).facts.pytest == {"passed": 3}


def test_metrics_that_are_no_numbers_in_json_are_read_again(log: Path) -> None:
    log.write_bytes(b"step 1: {'train/loss': nan}\n")
    assert str(read_run_log(str(log)).facts.values) == "{'train/loss': nan}"
    assert str(reading_of(str(log)).facts.values) == "{'train/loss': nan}"


def test_a_log_that_goes_on_or_is_missing_leaves_nothing_beside_it(log: Path, tmp_path: Path) -> None:
    reading_of(str(log))
    assert read_run_log(str(tmp_path / "none" / "log")).facts.last_line is None
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("first\nlast\n\n", "last"),
        ("##[group]Run tests\npytest -q\n##[endgroup]\n", "pytest -q"),
        ("::endgroup::\n", ""),
        ("loading\n====================\n--------\n...\n", "loading"),
        ("======= 3 passed in 0.52s =======\n", "======= 3 passed in 0.52s ======="),
        ("", ""),
    ],
)
def test_the_last_line_is_the_last_one_that_says_something(log: str, expected: str, tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    Path(run.log).write_text(log)
    assert last_line(run) == expected
