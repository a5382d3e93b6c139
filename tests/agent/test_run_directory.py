"""The run directory's names are one place's business, and its JSON is whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_tasks.agent import run_directory
from ci_tasks.agent.files import replace_file


def test_every_path_lies_in_the_run_directory(tmp_path: Path) -> None:
    paths = vars(run_directory.RunDir(str(tmp_path)))
    assert len(set(paths.values())) == len(paths)
    assert all(value == str(tmp_path) or value.startswith(f"{tmp_path}/") for value in paths.values())


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "no bytes")  # type: ignore[arg-type]
    assert Path(path).read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.json"]
