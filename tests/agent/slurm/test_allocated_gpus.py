"""A job has the GPUs that Slurm gave, as many as its row wants, whatever the lock script of the checkout believes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.containers.rules import ContainerRules
from ci_tasks.agent.gpus.nvidia_smi import Gpu
from ci_tasks.agent.gpus.request import GpuRequest
from ci_tasks.agent.records import Plan
from ci_tasks.agent.slurm import allocated_gpus

FOUR = Plan(gpu_locks=GpuRequest(4, by="slurm"), container=ContainerRules("none"))
SLURMS = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "ENROOT_X": "1", "APPTAINER_X": "1", "HOME": "/h"}
SHOW = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.mark.parametrize(
    ("environ", "visible", "ids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_JOB_GPUS": "4,5,6,7"}, ["4", "5", "6", "7"], [4, 5, 6, 7]),
        # A job that sees its own GPUs only: Slurm numbers them from 0.
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_JOB_GPUS": "4,5,6,7"}, ["0", "1", "2", "3"], [4, 5, 6, 7]),
        # A node of its own has all GPUs.
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, ["0", "1", "2", "3"], [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"}, ["GPU-a", "GPU-b", "GPU-c", "GPU-d"], []),
    ],
)
def test_a_job_has_as_many_of_its_gpus_as_it_needs(environ: dict[str, str], visible: Any, ids: Any) -> None:
    passed = allocated_gpus.environment(FOUR, environ)
    assert (allocated_gpus.gpus(passed), allocated_gpus.gpu_ids(passed)) == (visible, ids)


@pytest.mark.parametrize("visible", [None, "", "NoDevFiles", "0,1"])
def test_a_job_with_too_few_gpus_cannot_start(visible: str | None) -> None:
    with pytest.raises(allocated_gpus.NoGpusAllocated, match="the row needs 4"):
        allocated_gpus.environment(FOUR, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("runtime", "more", "names"),
    [
        ("none", {}, {"SLURM_JOB_ID"}),
        ("apptainer", {}, {"SLURM_JOB_ID", "APPTAINER_X"}),
        ("pyxis", {}, {"SLURM_JOB_ID", "SLURM_PROCID", "ENROOT_X"}),
        # Of several nodes: the others are started by srun, whatever the runtime.
        ("none", {"CI_TASKS_PASSED": "SLURM_JOB_HOSTNAMES HEAD", "SLURM_JOB_HOSTNAMES": "a\nb", "HEAD": "a"},
         {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_JOB_HOSTNAMES", "HEAD"}),
    ],
)  # fmt: skip
def test_a_job_gets_the_variables_of_slurm_that_it_needs(runtime: str, more: dict[str, str], names: set[str]) -> None:
    plan = Plan(container=ContainerRules(runtime))
    assert set(allocated_gpus.environment(plan, {**SLURMS, **more})) == names


def test_the_replaced_lock_script_takes_slurms_gpus_and_becomes_the_command(tmp_path: Path) -> None:
    script = tmp_path / "tests/ci/gpu_lock_exec.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('the checkout’s own')")
    allocated_gpus.replace_lock_script(str(tmp_path), "tests/ci/gpu_lock_exec.py", ["6", "7"])
    output = _run(
        script, "--count", "1", "--total-gpus", "8", "--", sys.executable, "-c", f"{SHOW}; raise SystemExit(9)"
    )
    assert (output.returncode, output.stdout) == (9, "[gpu_lock_exec] Acquired GPUs: 6\n6\n")
    output = _run(script, "--count", "4", "--", "true")
    assert (output.returncode, output.stderr) == (1, "[gpu_lock_exec] Slurm allocated the GPUs 6,7, and 4 are needed\n")


def _run(script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    return subprocess.run(
        [sys.executable, str(script), *args], env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("visible", "on_node", "shown", "uuids"),
    [
        ("0,1", "2,3", [0, 1], ["GPU-0", "GPU-1"]),  # the job sees its own alone, numbered from 0
        ("2,3", "2,3", [0, 1, 2, 3], ["GPU-2", "GPU-3"]),
        ("GPU-7", "7", [], ["GPU-7"]),
        ("0,1", "0,1", [], []),  # no nvidia-smi
    ],
)
def test_gpus_are_known_by_uuid_where_nvidia_smi_shows_them(
    visible: str, on_node: str, shown: list[int], uuids: list[str]
) -> None:
    passed = {"CUDA_VISIBLE_DEVICES": visible, "SLURM_JOB_GPUS": on_node}
    assert (
        allocated_gpus.gpu_uuids(passed, [Gpu(index, f"GPU-{index}", "", "", None, None) for index in shown]) == uuids
    )
