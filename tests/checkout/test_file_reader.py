"""Many files are read by one process, which ends with its reader."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci_tasks.checkout.file_reader import FileReader
from ci_tasks.checkout.git import Git, GitError
from tests.checkout.repositories import commit, git


@pytest.fixture
def tree(tmp_path: Path) -> str:
    git(tmp_path, "init", "-q")
    (tmp_path / "deep").mkdir()
    for number in range(20):
        (tmp_path / f"deep/{number}").write_text(f"{number}\n" * number)
    (tmp_path / "two words 1").write_text("w")
    for name, target in {"link": "deep/3", "out": "../x", "loop": "loop", "gone": "nothing"}.items():
        (tmp_path / name).symlink_to(target)
    commit(tmp_path)
    return git(tmp_path, "rev-parse", "HEAD^{tree}")


def test_each_question_gets_its_own_answer_whatever_the_ones_before_were(tree: str, tmp_path: Path) -> None:
    reader = FileReader(Git(tmp_path / ".git"))
    for name in ("deep", "out", "loop", "gone", "deep/3/x", "no", "no blob 3", "deep missing"):
        assert reader.read(f"{tree}:{name}") is None
        assert reader.read(f"{tree}:link") == b"3\n3\n3\n"
    assert reader.read(f"{tree}:two words 1") == b"w"
    assert reader.read(f"{tree}:deep/0") == b""


def test_several_threads_may_use_it(tree: str, tmp_path: Path) -> None:
    reader = FileReader(Git(tmp_path / ".git"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: reader.read(f"{tree}:deep/{number % 20}"), range(200)))
    assert answers == [f"{number % 20}\n".encode() * (number % 20) for number in range(200)]


def test_its_process_ends_with_it(tree: str, tmp_path: Path) -> None:
    reader = FileReader(Git(tmp_path / ".git"))
    reader.read(f"{tree}:link")
    process = reader._process
    assert process and process.poll() is None
    del reader
    assert process.returncode == 0


def test_one_that_has_ended_is_an_error(tree: str, tmp_path: Path) -> None:
    reader = FileReader(Git(tmp_path / ".git"))
    reader.read(f"{tree}:link")
    assert reader._process
    os.kill(reader._process.pid, 9)
    with pytest.raises(GitError, match="has ended"):
        reader.read(f"{tree}:link")
