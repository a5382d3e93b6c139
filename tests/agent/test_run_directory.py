"""The run directory's names are one place's business, and its JSON is whole or not there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ci_tasks.agent import run_directory


def test_every_path_lies_in_the_run_directory(tmp_path: Path) -> None:
    paths = vars(run_directory.RunDir(str(tmp_path)))
    assert len(set(paths.values())) == len(paths)
    assert all(value == str(tmp_path) or value.startswith(f"{tmp_path}/") for value in paths.values())


def test_a_relative_path_keeps_its_meaning_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_directory.RunDir("run").path == str(tmp_path / "run")


@pytest.mark.parametrize("value", [{}, {"a": [1, None, "ü\n…"]}, {"path": "not utf-8: \udcff"}])
def test_what_is_written_is_read_again(tmp_path: Path, value: dict[str, object]) -> None:
    path = str(tmp_path / "x.json")
    run_directory.write_json(path, value)
    assert run_directory.read_json(path) == value
    assert json.loads(Path(path).read_bytes()) == value


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    run_directory.write_json(path, {"old": True})
    with pytest.raises(TypeError):
        run_directory.write_json(path, {"new": object()})
    assert run_directory.read_json(path) == {"old": True}
    assert os.listdir(tmp_path) == ["x.json"]


def test_only_its_owner_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    run_directory.write_json(str(path), {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_file_and_one_that_is_no_object_are_empty(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1]")
    assert run_directory.read_json(str(tmp_path / "none.json")) == {}
    assert run_directory.read_json(str(tmp_path / "list.json")) == {}
