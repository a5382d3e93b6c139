"""Holding a lock script still, seen in the states of real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent.gpus.pause_lock_script import LockScriptPauser

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

Until = Callable[..., Any]


def _state(script: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{script.pid}/stat").read_text().rpartition(")")[2].split()[0]


def _start(gpu_host: GpuHost, run: Path, name: str = "gpu_lock_exec.py") -> subprocess.Popen[str]:
    command = ["sh", "-c", "echo begun; while read line; do echo $line; done", name]
    script = gpu_host.start(command, CI_TASKS_RUN_DIR=os.path.realpath(run))
    assert script.stdout is not None and script.stdout.readline() == "begun\n"
    return script


def test_no_other_process_of_the_run_or_of_others_is_paused(gpu_host: GpuHost, tmp_path: Path) -> None:
    trainer, stranger = _start(gpu_host, tmp_path, "train.py"), _start(gpu_host, tmp_path / "other")
    pauser = LockScriptPauser(str(tmp_path))
    assert not pauser.pause()
    assert "T" not in (_state(trainer), _state(stranger))
    pauser.resume()


def test_a_script_that_may_not_be_signalled_is_not_paused(
    gpu_host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _start(gpu_host, tmp_path)

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not LockScriptPauser(str(tmp_path)).pause()
    monkeypatch.undo()
