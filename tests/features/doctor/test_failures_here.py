"""What the history says of a host's GPUs."""

from __future__ import annotations

from ci_tasks.features.doctor.failures_here import results
from ci_tasks.results.machines import MachineRun

RUNS = [
    MachineRun(at, ("ckpt", "r"), f"t{at}", "h100a/node1", {f"GPU-{at % 4}": at % 4}, failed=at % 4 == 3)
    for at in range(80)
]


def test_a_gpu_that_is_worse_than_its_peers_is_a_warning_with_the_next_step() -> None:
    (found,) = results("h100a", RUNS)
    assert (found.topic, found.status) == ("failures here", "warning")
    assert found.text.startswith("GPU 3 of h100a/node1: 20 of 20 runs failed, more than the same rows elsewhere")
    assert "ci-tasks runs --machines --host h100a" in found.next_step


def test_without_one_that_is_said_and_without_runs_nothing() -> None:
    (found,) = results("h100a", RUNS[:2])
    assert (found.status, found.text) == ("ok", "no GPU is worse than its peers in 2 runs")
    assert not results("h100", RUNS)
