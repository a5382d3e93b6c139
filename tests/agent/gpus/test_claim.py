"""GPUs that the agent itself takes, against other processes. The clock is ours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.gpus import claim
from ci_tasks.agent.gpus.claim import GpuClaim
from ci_tasks.agent.gpus.nvidia_smi import Gpu, GpuProcess, GpuSnapshot
from ci_tasks.agent.gpus.request import AGENT, GpuRequest
from ci_tasks.agent.gpus.reservation import LockTimings

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost


class World:
    """A snapshot source and a clock that a test sets."""

    problem = ""

    def __init__(self) -> None:
        self.now = 1000.0
        self.latest: GpuSnapshot | None = None
        self.see()

    def see(self, *apps: GpuProcess) -> None:
        self.latest = GpuSnapshot(tuple(Gpu(at, f"GPU-{at}", "H200", "580", 4, 143771) for at in range(4)), apps)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def world() -> World:
    return World()


def _claim(gpu_host: GpuHost, count: int, world: World) -> GpuClaim:
    return GpuClaim(GpuRequest(count, AGENT, gpu_host.pattern), world, LockTimings(refresh=0), world.clock)


def test_the_lowest_free_gpus_are_taken_and_shown_to_the_job(gpu_host: GpuHost, world: World) -> None:
    gpu_host.hold(1)
    world.see(GpuProcess("GPU-0", 42, 100, "x"))
    mine = _claim(gpu_host, 2, world)
    mine.poll()
    assert mine.gpu_ids == [2, 3]
    assert mine.environ == {"CUDA_VISIBLE_DEVICES": "2,3", "CI_TASKS_GPU_IDS": "2,3"}
    assert gpu_host.free(4) == [0]
    mine.close()
    assert gpu_host.free(4) == [0, 2, 3]


def test_all_or_none(gpu_host: GpuHost, world: World) -> None:
    holder = gpu_host.hold(1)
    mine = _claim(gpu_host, 4, world)
    mine.poll()
    assert mine.gpu_ids is None
    assert gpu_host.free(4) == [0, 2, 3]
    assert mine.waiting[0].startswith(f"GPU 1 held by pid {holder.pid} ")
    gpu_host.end(holder)
    mine.poll()
    assert not mine.waiting
    assert gpu_host.free(4) == []
    mine.close()


def test_after_a_while_free_gpus_are_reserved(gpu_host: GpuHost, world: World) -> None:
    one, other = gpu_host.hold(0, 1), gpu_host.hold(2, 3)
    mine = _claim(gpu_host, 4, world)
    mine.poll()
    world.now += 61
    gpu_host.end(one)
    mine.poll()
    assert gpu_host.free(2) == []
    late = _claim(gpu_host, 1, world)  # it came later and needs little: it gets neither what is reserved nor what comes
    late.poll()
    gpu_host.end(other)
    late.poll()
    assert late.gpu_ids is None
    mine.poll()
    assert mine.gpu_ids == [0, 1, 2, 3]
    mine.close()
    late.poll()
    assert late.gpu_ids == [0]


def test_a_reserved_gpu_that_a_process_uses_is_released(gpu_host: GpuHost, world: World) -> None:
    gpu_host.hold(1)
    mine = _claim(gpu_host, 4, world)
    world.now += 61
    mine.poll()
    assert gpu_host.free(4) == []
    world.see(GpuProcess("GPU-3", 42, 100, "x"))
    mine.poll()
    assert gpu_host.free(4) == [3]
    assert "GPU 3: 100 MiB in use by pid 42 (x) without a lock" in mine.waiting


def test_the_agents_choice_is_read_from_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(claim.ENV_GPU_IDS, raising=False)
    assert claim.visible_gpus() == {}
    monkeypatch.setitem(os.environ, claim.ENV_GPU_IDS, "2,3")
    assert claim.visible_gpus() == {"CUDA_VISIBLE_DEVICES": "2,3"}
