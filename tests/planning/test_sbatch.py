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
from ci_tasks.errors import UsageError
from ci_tasks.planning import sbatch
from ci_tasks.planning.sbatch import SlurmResources

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
    there = sbatch.on_slurm(made)
    assert there.gpu_locks is not None
    assert (there.gpu_locks.by, there.gpu_locks.count, there.gpu_locks.script) == ("slurm", 4, script)
    assert [each.what for each in there.deviations] == ["code", "GPU locks"]
    assert "Slurm gave" in there.deviations[1].here
    assert sbatch.on_slurm(there) == there, "again, it changes nothing"


def test_rows_that_start_ray_have_a_node_of_their_own() -> None:
    there = sbatch.on_slurm(plan(exclusive=("ray-host-network",)))
    assert there.exclusive == (), "nobody else waits for them"
    assert "node" in {each.what for each in there.deviations}
    assert "--exclusive" in options(sbatch.script(CLUSTER, sbatch.want(there, CLUSTER)))
    assert "--exclusive" not in options(sbatch.script(CLUSTER, sbatch.want(plan(), CLUSTER)))


def test_a_row_without_gpus_keeps_its_plan_but_for_places_that_the_command_shares() -> None:
    made = plan("pytest", gpus=0, exclusive=("cpu-1",))
    assert sbatch.on_slurm(made) == replace(made, exclusive=())


def test_the_batch_script_asks_for_what_the_plan_says() -> None:
    assert options(sbatch.script(FULL, sbatch.want(plan(), FULL))) == [
        "--job-name=ci-tasks", "--partition=h100", "--account=team", "--qos=high", "--nodes=1", "--ntasks=1",
        "--gres=gpu:h100:4", "--time=35", "--requeue", "--open-mode=append", "'--comment=a b'",
    ]  # fmt: skip


@pytest.mark.parametrize(("minutes", "time"), [(30, 35), (0.5, 6), (1440, 1445), (29.2, 35)])
def test_the_row_s_own_timeout_comes_before_slurm_s(minutes: float, time: int) -> None:
    assert f"--time={time}" in options(sbatch.script(CLUSTER, SlurmResources(minutes)))


@pytest.mark.parametrize(
    ("limit", "minutes", "time"), [(None, 30, 35), (35, 30, 35), (60, 30, 35), (30, 25, 30), (8, 4, 8), (1, 0.5, 1)]
)
def test_a_timeout_is_clipped_to_what_the_partition_allows_and_that_is_named(
    limit: float | None, minutes: float, time: int
) -> None:
    there = sbatch.within_limit(plan(), limit, FULL)
    assert there.timeout_minutes == minutes
    text = sbatch.script(FULL, replace(sbatch.want(there, FULL), limit=limit))
    assert f"--time={time}" in options(text)
    named = [each for each in there.deviations if each.what == "time limit"]
    assert bool(named) == (minutes != 30)
    if named:
        why = f"partition h100 of cluster runs jobs for {limit:g} min at most"
        assert named == [Deviation("time limit", "30 min", f"{minutes:g} min", why)]
    assert sbatch.within_limit(there, limit, FULL) == there or minutes < 4, "again, it changes nothing"


def test_several_nodes_are_asked_for_and_their_names_handed_on() -> None:
    text = sbatch.script(CLUSTER, sbatch.want(plan(gpus=8), CLUSTER, nodes=2))
    assert {"--nodes=2", "--gres=gpu:8"} < set(options(text))
    assert "SLURM_JOB_HOSTNAMES" in text
    assert text.index("CI_TASKS_PASSED=") < text.index("exec python3")
    with pytest.raises(UsageError, match="one machine"):
        sbatch.want(plan(), HostSpec(name="box", kind="ssh"), nodes=2)


def test_the_script_becomes_the_runner_of_its_row(tmp_path: Path) -> None:
    """With a `python3` that says what it was called with."""
    run = tmp_path / "a run's directory"
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "batch.sh").write_text(sbatch.script(CLUSTER, SlurmResources(1)))
    command = ["bash", str(tmp_path / "batch.sh"), str(run)]
    output = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert output.stdout == f"-I {run}/bin/agent.pyz batch {run}\n", output.stderr


# Several nodes

PYXIS = HostSpec("c", kind="slurm", address="login", gres="gpu:h100", runtime="pyxis", gpus=8)


@pytest.mark.parametrize(
    ("nodes", "gpus", "host", "options"),
    [
        (1, 4, PYXIS, ("--nodes=1", "--ntasks=1", "--gres=gpu:h100:4")),
        (1, 0, PYXIS, ("--nodes=1", "--ntasks=1")),
        (1, 4, HostSpec("c", kind="slurm", address="l"), ("--nodes=1", "--ntasks=1", "--gres=gpu:4")),
        (1, 8, HostSpec("box", kind="ssh", address="b", gpus=8), ("--nodes=1", "--ntasks=1", "--gres=gpu:8")),
        # slime counts GPUs by node, and so does --gres
        (4, 8, PYXIS, ("--nodes=4", "--ntasks-per-node=1", "--gres=gpu:h100:8")),
    ],
)
def test_what_sbatch_is_asked_for(nodes: int, gpus: int, host: HostSpec, options: tuple[str, ...]) -> None:
    assert sbatch.node_lines(nodes, gpus, host).options == options


def test_one_node_is_as_ci_and_several_are_a_deviation() -> None:
    one, two = sbatch.node_lines(1, 8, PYXIS), sbatch.node_lines(2, 8, PYXIS)
    assert (one.prologue, one.passed, one.deviations) == ("", (), ())
    assert [(deviation.what, deviation.here) for deviation in two.deviations] == [("nodes", "2 nodes with 8 GPUs each")]


@pytest.mark.parametrize(("environment", "head"), [({}, "10.0.0.1"), ({"MASTER_ADDR": "10.9.9.9"}, "10.9.9.9")])
def test_the_prologue_names_the_nodes_as_slime_reads_them(environment: dict[str, str], head: str) -> None:
    lines = sbatch.node_lines(2, 8, PYXIS)
    programs = """
        scontrol() { [ "$*" = "show hostnames n[3-4]" ] && printf 'n3\\nn4\\n'; }
        hostname() { [ "$*" = -I ] && echo "10.0.0.1 192.168.0.1 "; }
    """
    shown = "".join(f'printf "%s;" "${name}"; ' for name in lines.passed)
    text = programs + lines.prologue + shown
    env = {"SLURM_JOB_NODELIST": "n[3-4]", "PATH": "/usr/bin:/bin", **environment}
    assert subprocess.run(["bash", "-euc", text], env=env, capture_output=True, text=True).stdout == f"n3\nn4;{head};"


@pytest.mark.parametrize(
    ("nodes", "gpus", "host", "message"),
    [
        (0, 8, PYXIS, "at least one"),
        (2, 8, HostSpec("box", kind="ssh", address="b"), "host box is one machine"),
        (1, 16, PYXIS, "16 GPUs on one node, and those of host c have 8"),
        (2, 8, HostSpec("c", kind="slurm", address="l"), "docker of host c cannot start the other nodes"),
    ],
)
def test_what_a_host_cannot_give_to_several_nodes(nodes: int, gpus: int, host: HostSpec, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sbatch.node_lines(nodes, gpus, host)
