"""The run directory's names are one place's business, and its JSON is whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci_tasks.agent import run_directory


def test_every_path_lies_in_the_run_directory(tmp_path: Path) -> None:
    paths = vars(run_directory.RunDir(str(tmp_path)))
    assert len(set(paths.values())) == len(paths)
    assert all(value == str(tmp_path) or value.startswith(f"{tmp_path}/") for value in paths.values())


@pytest.mark.parametrize("value", [{}, {"a": [1, None, "ü\n…"]}, {"path": "not utf-8: \udcff"}])
def test_what_is_written_is_read_again(tmp_path: Path, value: dict[str, object]) -> None:
    run_directory.write_json(str(tmp_path / "x.json"), value)
    assert run_directory.read_json(str(tmp_path / "x.json")) == json.loads((tmp_path / "x.json").read_bytes()) == value
    assert run_directory.read_json(str(tmp_path / "not-yet.json")) == {}


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    run_directory.write_json(path, {"old": True})
    with pytest.raises(TypeError):
        run_directory.write_json(path, {"new": object()})
    assert run_directory.read_json(path) == {"old": True}
    assert os.listdir(tmp_path) == ["x.json"]
