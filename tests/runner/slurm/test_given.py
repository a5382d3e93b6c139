"""A job has the GPUs that Slurm gave, as many as its row wants, whatever the lock script of the checkout believes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.runner.slurm import given

FOUR = {"gpu_locks": {"count": 4}, "container": {"runtime": "none"}}
SLURMS = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "ENROOT_X": "1", "APPTAINER_X": "1", "HOME": "/h"}
SHOW = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.mark.parametrize(
    ("environ", "seen", "ids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_JOB_GPUS": "4,5,6,7"}, ["4", "5", "6", "7"], [4, 5, 6, 7]),
        # A job that sees its own GPUs only: Slurm numbers them from 0.
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_JOB_GPUS": "4,5,6,7"}, ["0", "1", "2", "3"], [4, 5, 6, 7]),
        # A node of its own has all GPUs.
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, ["0", "1", "2", "3"], [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"}, ["GPU-a", "GPU-b", "GPU-c", "GPU-d"], []),
    ],
)
def test_a_job_has_the_gpus_that_slurm_gave_and_no_more(environ: dict[str, str], seen: Any, ids: Any) -> None:
    passed = given.environment(FOUR, environ)
    assert (given.gpus(passed), given.gpu_ids(passed)) == (seen, ids)


@pytest.mark.parametrize("visible", [None, "", "NoDevFiles", "0,1"])
def test_a_job_with_too_few_gpus_cannot_begin(visible: str | None) -> None:
    with pytest.raises(given.NotGiven, match="the row needs 4"):
        given.environment(FOUR, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


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
def test_of_slurms_environment_a_job_gets_what_it_needs(runtime: str, more: dict[str, str], names: set[str]) -> None:
    plan = {"gpu_locks": None, "container": {"runtime": runtime}}
    assert set(given.environment(plan, {**SLURMS, **more})) == names


def test_the_stand_in_takes_what_slurm_gave_and_becomes_the_command(tmp_path: Path) -> None:
    script = tmp_path / "tests/ci/gpu_lock_exec.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('the checkout’s own')")
    given.stand_in(str(tmp_path), "tests/ci/gpu_lock_exec.py", ["6", "7"])
    said = _run(script, "--count", "1", "--total-gpus", "8", "--", sys.executable, "-c", f"{SHOW}; raise SystemExit(9)")
    assert (said.returncode, said.stdout) == (9, "[gpu_lock_exec] Acquired GPUs: 6\n6\n")
    said = _run(script, "--count", "4", "--", "true")
    assert (said.returncode, said.stderr) == (1, "[gpu_lock_exec] Slurm gave the GPUs 6,7, and 4 are wanted\n")


def test_a_lock_script_that_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "lock.py").symlink_to("target")
    given.stand_in(str(tmp_path), "lock.py", ["0"])
    assert (tmp_path / "target").read_text() == "mine"


def _run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    return subprocess.run(
        [sys.executable, str(script), *words], env=environ, capture_output=True, text=True, check=False
    )
