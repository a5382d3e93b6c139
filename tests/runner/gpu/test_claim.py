"""GPUs that the runner itself takes, against other processes. The clock is ours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ci_tasks.runner.gpu import claim
from ci_tasks.runner.gpu.claim import Claim
from ci_tasks.runner.gpu.gpus import App, Gpu, Sight
from ci_tasks.runner.gpu.request import RUNNER, Request
from ci_tasks.runner.gpu.turn import Pace

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox


class World:
    """What the last look showed, and the time."""

    problem = ""

    def __init__(self) -> None:
        self.now = 1000.0
        self.latest: Sight | None = None
        self.see()

    def see(self, *apps: App) -> None:
        self.latest = Sight(tuple(Gpu(at, f"GPU-{at}", "H200", "580", 4, 143771) for at in range(4)), apps)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def world() -> World:
    return World()


def _claim(box: GpuBox, count: int, world: World) -> Claim:
    return Claim(Request(count, RUNNER, box.pattern), world, Pace(refresh=0), world.clock)


def test_the_lowest_free_gpus_are_taken_and_shown_to_the_job(box: GpuBox, world: World) -> None:
    box.hold(1)
    world.see(App("GPU-0", 42, 100, "x"))
    mine = _claim(box, 2, world)
    mine.tick()
    assert mine.gpu_ids == [2, 3]
    assert mine.environ == {"CUDA_VISIBLE_DEVICES": "2,3", "CI_TASKS_GPU_IDS": "2,3"}
    assert box.free(4) == [0]
    mine.close()
    assert box.free(4) == [0, 2, 3]


def test_all_or_none(box: GpuBox, world: World) -> None:
    holder = box.hold(1)
    mine = _claim(box, 4, world)
    mine.tick()
    assert mine.gpu_ids is None
    assert box.free(4) == [0, 2, 3]
    assert mine.waiting[0].startswith(f"GPU 1 held by pid {holder.pid} ")
    box.end(holder)
    mine.tick()
    assert not mine.waiting
    assert box.free(4) == []
    mine.close()


def test_after_a_while_it_collects(box: GpuBox, world: World) -> None:
    one, other = box.hold(0, 1), box.hold(2, 3)
    mine = _claim(box, 4, world)
    mine.tick()
    world.now += 61
    box.end(one)
    mine.tick()
    assert box.free(2) == []
    late = _claim(box, 1, world)  # it came later and needs little: it does not get what is collected, nor what comes
    late.tick()
    box.end(other)
    late.tick()
    assert late.gpu_ids is None
    mine.tick()
    assert mine.gpu_ids == [0, 1, 2, 3]
    mine.close()
    late.tick()
    assert late.gpu_ids == [0]


def test_a_collected_gpu_that_somebody_uses_is_let_go(box: GpuBox, world: World) -> None:
    box.hold(1)
    mine = _claim(box, 4, world)
    world.now += 61
    mine.tick()
    assert box.free(4) == []
    world.see(App("GPU-3", 42, 100, "x"))
    mine.tick()
    assert box.free(4) == [3]
    assert "GPU 3: 100 MiB in use by pid 42 (x) without a lock" in mine.waiting


def test_a_claim_that_is_closed_while_it_waits_leaves_nothing(box: GpuBox, world: World) -> None:
    box.hold(1)
    mine = _claim(box, 4, world)
    world.now += 61
    mine.tick()
    mine.close()
    assert box.free(4) == [0, 2, 3]
    other = _claim(box, 3, world)
    other.tick()
    assert other.gpu_ids == [0, 2, 3]


def test_what_the_runner_decided_is_found_in_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(claim.ENV_GPU_IDS, raising=False)
    assert claim.visible_devices() == {}
    monkeypatch.setitem(os.environ, claim.ENV_GPU_IDS, "2,3")
    assert claim.visible_devices() == {"CUDA_VISIBLE_DEVICES": "2,3"}
