"""Holding a lock script still, seen in the states of real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.runner.gpu.still import Still

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox

Until = Callable[..., Any]


def _state(script: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{script.pid}/stat").read_text().rpartition(")")[2].split()[0]


def _start(box: GpuBox, run: Path, name: str = "gpu_lock_exec.py") -> subprocess.Popen[str]:
    command = ["sh", "-c", "echo begun; while read line; do echo $line; done", name]
    script = box.start(command, CI_TASKS_RUN_DIR=os.path.realpath(run))
    assert script.stdout is not None and script.stdout.readline() == "begun\n"
    return script


def test_the_script_is_held_and_goes_on_where_it_was(box: GpuBox, tmp_path: Path, until: Until) -> None:
    script = _start(box, tmp_path)
    held = Still(str(tmp_path))
    assert held.hold()
    assert held.hold()
    until(lambda: _state(script) == "T")
    held.go_on()
    until(lambda: _state(script) != "T")
    assert script.stdin is not None and script.stdout is not None
    script.stdin.write("well\n")
    script.stdin.flush()
    assert script.stdout.readline() == "well\n"


def test_nothing_else_of_the_run_is_held_and_nothing_of_others(box: GpuBox, tmp_path: Path) -> None:
    trainer, stranger = _start(box, tmp_path, "train.py"), _start(box, tmp_path / "other")
    held = Still(str(tmp_path))
    assert not held.hold()
    assert "T" not in (_state(trainer), _state(stranger))
    held.go_on()


def test_a_script_that_may_not_be_signalled_is_not_held(
    box: GpuBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _start(box, tmp_path)

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not Still(str(tmp_path)).hold()
    monkeypatch.undo()


def test_a_script_that_ended_while_it_was_held_harms_nothing(box: GpuBox, tmp_path: Path) -> None:
    script = _start(box, tmp_path)
    held = Still(str(tmp_path))
    assert held.hold()
    box.end(script)
    held.go_on()
    assert not held.hold()
    held.go_on()
