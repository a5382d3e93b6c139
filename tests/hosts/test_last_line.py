"""What the last line of a log that grows says of its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.hosts.last_line import last_line


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("first\nlast\n\n", "last"),
        ("##[group]Run tests\npytest -q\n##[endgroup]\n", "pytest -q"),
        ("##[group]Run tests\n", "Run tests"),
        ("::endgroup::\n", ""),
        ("##[error]no space left\n##[endgroup]\n", "no space left"),
        ("loading\n====================\n--------\n...\n", "loading"),
        ("======= 3 passed in 0.52s =======\n", "3 passed in 0.52s"),
        ("-- Docs: https://docs.pytest.org --\n", "-- Docs: https://docs.pytest.org --"),
        ("", ""),
    ],
)
def test_it_is_the_last_one_that_says_something(log: str, expected: str, tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    Path(run.log).write_text(log)
    assert last_line(run) == expected
