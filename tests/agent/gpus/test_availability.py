"""How GPUs stand for a request, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.gpus import availability, lock_files
from ci_tasks.agent.gpus.nvidia_smi import Gpu, GpuProcess, GpuSnapshot, simulated_gpus
from ci_tasks.agent.gpus.request import GpuRequest

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost


def _sight(*used: int, apps: tuple[GpuProcess, ...] = ()) -> GpuSnapshot:
    return GpuSnapshot(tuple(Gpu(at, f"GPU-{at}", "H200", "580", mib, 143771) for at, mib in enumerate(used)), apps)


PROBLEMS = [
    (GpuRequest(8), _sight(0, 0, 0, 0), "this host has 4 GPUs, the job needs 8"),
    (GpuRequest(2), _sight(0), "this host has 1 GPU, the job needs 2"),
    (GpuRequest(4), _sight(0, 0, 0, 0), ""),
    (GpuRequest(1), _sight(50000), ""),  # in use now, not for ever
    (GpuRequest(9, total=8), simulated_gpus(16), "this host has 8 GPUs, the job needs 9"),
    (
        GpuRequest(1),
        GpuSnapshot(problem="NVIDIA-SMI has failed"),
        "nvidia-smi shows no GPUs: NVIDIA-SMI has failed",
    ),
]


@pytest.mark.parametrize(("request_", "snapshot", "reason"), PROBLEMS, ids=[reason or "met" for *_, reason in PROBLEMS])
def test_a_request_that_can_never_be_met_has_a_reason(request_: GpuRequest, snapshot: GpuSnapshot, reason: str) -> None:
    assert availability.unmet_requirement(request_, snapshot) == reason


def test_gpus_that_are_missing_or_in_use_are_not_usable() -> None:
    snapshot = _sight(4, 62464, 4, apps=(GpuProcess("GPU-2", 7, 10, "x"),))
    assert availability.usable_gpus(GpuRequest(1, total=4), snapshot) == [0]
    assert availability.missing_gpus(GpuRequest(1, total=4), snapshot) == [3]


def test_every_obstacle_has_its_sentence(gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    request = GpuRequest(8, pattern=gpu_host.pattern)
    gpu_host.hold(0, 1, 3, CI_TASKS_RUN_DIR="/runs/batch/07")
    gpu_host.hold(4, shared=True)  # another run's fence, which says so itself
    app = GpuProcess("GPU-5", 4242, 62464, "python train.py")
    snapshot = _sight(4, 4, 4, 4, 4, 62464, apps=(app,))
    assert availability.wait_reasons(request, snapshot, ()) == [
        "GPUs 0-1, 3 held by run batch.07 for less than a minute",
        "GPU 5: 61 GiB in use by pid 4242 (python train.py) without a lock",
        "GPUs 6-7 do not exist here",
    ]
    monkeypatch.setattr(lock_files, "LOCKS", "/no/such/file")
    assert availability.wait_reasons(request, snapshot, ())[0] == "GPUs 0-1, 3 held by an unknown process"


def test_the_run_that_reserves_is_named(gpu_host: GpuHost) -> None:
    request = GpuRequest(1, pattern=gpu_host.pattern)
    assert availability.other_reservation(request) == []
    gpu_host.hold(request.reservation_lock, CI_TASKS_RUN_DIR="/runs/batch/07")
    assert availability.other_reservation(request) == ["run batch.07 for less than a minute reserves GPUs first"]
