"""The facts of environment.json, from the words of nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import environment_snapshot as snapshots
from ci_tasks.agent.records import GpuModel, QueryAnswer

if TYPE_CHECKING:
    from tests.agent.conftest import Run


SMI = "0, GPU-0, NVIDIA H200, 570.86.15, 4, 143771\n1, GPU-1, NVIDIA H200, 570.86.15, 4, 143771\n"


@pytest.mark.parametrize("locks", [{"count": 2, "simulated": 8}, None])
def test_gpus_are_asked_for_unless_they_are_simulated(
    run: Run, monkeypatch: pytest.MonkeyPatch, locks: dict[str, int] | None, until: Callable[..., Any]
) -> None:
    run.write("", container={"runtime": "none"}, gpus=2, gpu_locks=locks)
    monkeypatch.setattr(snapshots, "run_program", lambda *_: QueryAnswer(0, SMI))
    snapshot = snapshots.EnvironmentSnapshot(str(run.path))
    snapshot.begin()
    if locks is None:
        until(lambda: snapshot.environment.driver == "570.86.15")
        assert snapshot.environment.gpus[1] == GpuModel(1, "GPU-1", "NVIDIA H200", "143771 MiB")
    snapshot.finish([])
    assert bool(snapshot.environment.gpus) == (locks is None)
