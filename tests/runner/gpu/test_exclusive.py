"""Host-wide named locks, between real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.runner.gpu import locks
from ci_tasks.runner.gpu.exclusive import Exclusive

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox


def test_without_names_nothing_is_taken(box: GpuBox) -> None:
    assert Exclusive(()).done
    assert not list(box.path.glob("*.lock"))


def test_a_free_lock_is_ours_until_it_is_closed(box: GpuBox) -> None:
    path = str(box.path / "ci-tasks-ray-host-network.lock")
    lock = Exclusive(["ray-host-network"])
    lock.tick()
    assert lock.done and not lock.waiting
    assert not locks.is_free(path)
    lock.close()
    assert locks.is_free(path)


def test_a_lock_that_is_held_is_waited_for_and_its_holder_named(box: GpuBox) -> None:
    holder = box.hold(str(box.path / "ci-tasks-ray.lock"), CI_TASKS_RUN_DIR="/runs/batch/02")
    lock = Exclusive(["ray"])
    lock.tick()
    assert not lock.done
    assert lock.waiting == ["ray held by run batch.02 for less than a minute"]
    box.end(holder)
    lock.tick()
    assert lock.done and not lock.waiting


def test_a_holder_that_cannot_be_seen_is_somebody(box: GpuBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS", "/no/such/file")
    box.hold(str(box.path / "ci-tasks-ray.lock"))
    lock = Exclusive(["ray"])
    lock.tick()
    assert lock.waiting == ["ray held by somebody"]


def test_several_are_taken_in_the_order_of_their_names_and_none_past_one_that_is_held(box: GpuBox) -> None:
    """So that two runs that want both cannot each have one."""
    box.hold(str(box.path / "ci-tasks-a.lock"))
    lock = Exclusive(["b", "a", "b"])
    lock.tick()
    assert not lock.done
    assert locks.is_free(str(box.path / "ci-tasks-b.lock"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b", "x\ny"])
def test_a_name_cannot_leave_the_directory(box: GpuBox, name: str) -> None:
    before = {path.name for path in box.path.parent.iterdir()}
    lock = Exclusive([name])
    lock.tick()
    assert lock.done
    assert len(list(box.path.glob("ci-tasks-*.lock"))) == 1
    assert {path.name for path in box.path.parent.iterdir()} == before


def test_runs_that_pretend_have_their_own(box: GpuBox, tmp_path: Path) -> None:
    lock, other = Exclusive(["ray"], str(tmp_path / "pretend")), Exclusive(["ray"])
    lock.tick()
    other.tick()
    assert lock.done and other.done
    assert os.listdir(tmp_path / "pretend") == ["ci-tasks-ray.lock"]
