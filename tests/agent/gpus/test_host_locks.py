"""Host-wide named locks, between real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.gpus import lock_files
from ci_tasks.agent.gpus.host_locks import HostLocks

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost


def test_a_lock_that_is_held_is_waited_for_and_its_holder_named(gpu_host: GpuHost) -> None:
    holder = gpu_host.hold(str(gpu_host.path / "ci-tasks-ray.lock"), CI_TASKS_RUN_DIR="/runs/batch/02")
    lock = HostLocks(["ray"])
    lock.poll()
    assert not lock.is_done
    assert lock.waiting == ["ray held by run batch.02 for less than a minute"]
    gpu_host.end(holder)
    lock.poll()
    assert lock.is_done and not lock.waiting


def test_several_are_taken_in_the_order_of_their_names_and_none_past_one_that_is_held(gpu_host: GpuHost) -> None:
    """So that two runs that want both cannot each have one."""
    gpu_host.hold(str(gpu_host.path / "ci-tasks-a.lock"))
    lock = HostLocks(["b", "a", "b"])
    lock.poll()
    assert not lock.is_done
    assert lock_files.is_free(str(gpu_host.path / "ci-tasks-b.lock"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b", "x\ny"])
def test_a_name_cannot_leave_the_directory(gpu_host: GpuHost, name: str) -> None:
    before = {path.name for path in gpu_host.path.parent.iterdir()}
    lock = HostLocks([name])
    lock.poll()
    assert lock.is_done
    assert len(list(gpu_host.path.glob("ci-tasks-*.lock"))) == 1
    assert {path.name for path in gpu_host.path.parent.iterdir()} == before


def test_runs_with_simulated_gpus_have_their_own(gpu_host: GpuHost, tmp_path: Path) -> None:
    lock, other = HostLocks(["ray"], str(tmp_path / "simulated")), HostLocks(["ray"])
    lock.poll()
    other.poll()
    assert lock.is_done and other.is_done
    assert os.listdir(tmp_path / "simulated") == ["ci-tasks-ray.lock"]
