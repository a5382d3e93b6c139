"""What Slurm decides in the place of a host, and the text of the batch script that asks for it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.agent.records import Checkout, Deviation, GpuRequest, Plan
from ci_tasks.config import HostSpec
from ci_tasks.planning.placement import batch_script, on_slurm, within_limit

CLUSTER = HostSpec(name="cluster", kind="slurm", address="login", runtime="none")
FULL = replace(CLUSTER, partition="h100", gres="gpu:h100", account="team", qos="high", sbatch=("--comment=a b",))
LOCKED = "python tests/ci/gpu_lock_exec.py --count 4 -- python tests/test_x.py\n"


def plan(script: str = LOCKED, *, gpus: int = 4, by: str = "job", **more: Any) -> Plan:
    fields: dict[str, Any] = {
        "id": "b.01", "label": "ckpt", "job": "e2e-test-ckpt", "row": "x", "host": "cluster", "test": None, "args": "",
        "image": None, "runtime": "none", "env": {}, "secrets": (), "workspace": "/w", "stall_minutes": 10,
        "checkout": Checkout("/c", "1" * 40, "2" * 40), "timeout_minutes": 30,
        "deviations": (Deviation("GPU locks", "a", "b", "c"), Deviation("code", "a", "b", "c")),
        "gpu_locks": decode(GpuRequest, {"by": by, "count": gpus}, where="test") if gpus else None,
    }  # fmt: skip
    return Plan(**{**fields, "gpus": gpus, "script": script, **more})


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize(
    ("made", "script"),
    [
        (plan(), "tests/ci/gpu_lock_exec.py"),
        (plan("python ./ci/gpu_lock_exec.py --count 4 -- x"), "ci/gpu_lock_exec.py"),
        (plan("python train.py", by="agent"), None),
    ],
)
def test_slurm_s_gpus_take_the_place_of_locks_and_that_is_named(made: Plan, script: str | None) -> None:
    there = on_slurm(made)
    assert there.gpu_locks is not None
    assert (there.gpu_locks.by, there.gpu_locks.count, there.gpu_locks.script) == ("slurm", 4, script)
    assert [each.what for each in there.deviations] == ["code", "GPU locks"]
    assert "Slurm gave" in there.deviations[1].here
    assert on_slurm(there) == there, "again, it changes nothing"


def test_rows_that_start_ray_have_a_node_of_their_own() -> None:
    there = on_slurm(plan(exclusive=("ray-host-network",)))
    assert there.exclusive == (), "nobody else waits for them"
    assert "node" in {each.what for each in there.deviations}
    assert "--exclusive" in options(batch_script(there, CLUSTER, None))
    assert "--exclusive" not in options(batch_script(plan(), CLUSTER, None))


def test_a_row_without_gpus_keeps_its_plan_but_for_places_that_the_command_shares() -> None:
    made = plan("pytest", gpus=0, exclusive=("cpu-1",))
    assert on_slurm(made) == replace(made, exclusive=())


def test_the_batch_script_asks_for_what_the_plan_says() -> None:
    assert options(batch_script(plan(), FULL, None)) == [
        "--job-name=ci-tasks", "--partition=h100", "--account=team", "--qos=high", "--nodes=1", "--ntasks=1",
        "--gres=gpu:h100:4", "--time=35", "--requeue", "--open-mode=append", "'--comment=a b'",
    ]  # fmt: skip


@pytest.mark.parametrize(("minutes", "time"), [(30, 35), (0.5, 6), (1440, 1445), (29.2, 35)])
def test_the_row_s_own_timeout_comes_before_slurm_s(minutes: float, time: int) -> None:
    assert f"--time={time}" in options(batch_script(replace(plan(), timeout_minutes=minutes), CLUSTER, None))


@pytest.mark.parametrize(
    ("limit", "minutes", "time"), [(None, 30, 35), (35, 30, 35), (60, 30, 35), (30, 25, 30), (8, 4, 8), (1, 0.5, 1)]
)
def test_a_timeout_is_clipped_to_what_the_partition_allows_and_that_is_named(
    limit: float | None, minutes: float, time: int
) -> None:
    there = within_limit(plan(), limit, FULL)
    assert there.timeout_minutes == minutes
    text = batch_script(there, FULL, limit)
    assert f"--time={time}" in options(text)
    named = [each for each in there.deviations if each.what == "time limit"]
    assert bool(named) == (minutes != 30)
    if named:
        why = f"partition h100 of cluster runs jobs for {limit:g} min at most"
        assert named == [Deviation("time limit", "30 min", f"{minutes:g} min", why)]
    assert within_limit(there, limit, FULL) == there or minutes < 4, "again, it changes nothing"


def test_the_script_becomes_the_runner_of_its_row(tmp_path: Path) -> None:
    """With a `python3` that says what it was called with."""
    run = tmp_path / "a run's directory"
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "batch.sh").write_text(batch_script(plan(), CLUSTER, None))
    command = ["bash", str(tmp_path / "batch.sh"), str(run)]
    output = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert output.stdout == f"-I {run}/bin/agent.pyz batch {run}\n", output.stderr


@pytest.mark.parametrize(
    ("gpus", "gres", "asked"), [(4, "gpu:h100", ["--gres=gpu:h100:4"]), (4, None, ["--gres=gpu:4"]), (0, "gpu", [])]
)
def test_the_gpus_that_sbatch_is_asked_for(gpus: int, gres: str | None, asked: list[str]) -> None:
    made = options(batch_script(plan(gpus=gpus), replace(CLUSTER, gres=gres), None))
    assert [option for option in made if option.startswith("--gres")] == asked
