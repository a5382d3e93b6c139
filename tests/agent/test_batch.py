"""The agent as a batch job: in the foreground, on Slurm's GPUs, again after a requeue, and never two at once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import run_directory, supervisor
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.gpu_locks import ResourcesUnavailable
from ci_tasks.agent.records import GpuRequest, Plan, Secrets, SlurmAllocation, SlurmJob, Status
from tests.agent.conftest import wait_until

SLURM = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu1", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"}
TWO = {"by": "slurm", "count": 2, "script": None}


@pytest.fixture
def batch(new_run: Callable[..., Any], tmp_path: Path) -> Any:
    """A run that Slurm is about to begin."""
    run = new_run()
    run_directory.write_record(run.paths.slurm_job, SlurmJob(name="n", id="7"))
    argv = [sys.executable, run.paths.agent, "batch", str(run.path)]
    env = {"PATH": os.environ["PATH"], "HOME": "/", **SLURM}
    run.batch = lambda **more: subprocess.run(argv, env={**env, **more}, capture_output=True, timeout=60)
    return run


def test_slurm_gets_the_job_s_exit_code_and_the_job_its_gpus(batch: Any) -> None:
    batch.write("echo on $CUDA_VISIBLE_DEVICES; exit 3\n", gpu_locks=TWO, exclusive=["ray-host-network"])
    assert batch.batch().returncode == 3
    status = batch.status()
    assert (status.state, status.exit_code, status.gpu_ids) == ("ended", 3, (2, 3))
    assert status.slurm == SlurmAllocation("7", "gpu1")
    assert batch.log() == b"on 2,3\n"


def test_too_few_gpus_are_blocked_and_nothing_runs(batch: Any) -> None:
    batch.write("touch ran\n", gpu_locks={**TWO, "count": 4})
    assert batch.batch().returncode == 125
    assert b"blocked: Slurm allocated 2 GPUs to the job (CUDA_VISIBLE_DEVICES=2,3), the row needs 4" in batch.log()
    assert not batch.has("ran")


def test_a_job_that_was_requeued_starts_over_on_the_same_record(batch: Any) -> None:
    batch.write(
        "mkdir -p artifacts; echo x >> seen; n=$(wc -l < seen); touch artifacts/$n; echo begun; [ $n = 2 ] || kill $$\n"
    )
    assert (batch.batch().returncode, batch.batch(SLURM_RESTART_COUNT="1").returncode) == (143, 0)
    again = b"ci-tasks: Slurm started the job again (requeue 1), on gpu1; it starts over in a new checkout\n"
    assert batch.log() == b"begun\n" + again + b"begun\n"
    status = batch.status()
    assert (status.exit_code, status.slurm and status.slurm.restarts) == (0, 1)
    assert (status.log_bytes, status.log_sha256) == (len(batch.log()), hashlib.sha256(batch.log()).hexdigest())
    assert [path.name for path in Path(batch.paths.artifacts).iterdir()] == ["2"], "the first attempt's are gone"


def test_an_agent_on_a_node_that_was_thought_dead_gives_way(batch: Any) -> None:
    batch.write("echo begun; sleep 60\n")
    thread = threading.Thread(target=batch.batch)
    thread.start()
    wait_until(lambda: batch.status().group and batch.log())
    run_directory.write_record(run_directory.RunDir(str(batch.path)).attempt, SlurmAllocation("7", "gpu2", 1))
    record = Status("running", error="the other agent's")
    run_directory.write_record(batch.paths.status, record)
    thread.join(20)
    assert not thread.is_alive()
    assert batch.status() == record
    wait_until(lambda: batch.alive() == [])


def test_secrets_reach_the_job_and_are_gone_with_its_end(batch: Any) -> None:
    run_directory.write_record(run_directory.RunDir(str(batch.path)).secrets, Secrets({"TOKEN": "a-value-to-hide"}))
    batch.write('[ "$TOKEN" = a-value-to-hide ] && echo has $TOKEN\n', secrets=["TOKEN"])
    assert (batch.batch().returncode, batch.log()) == (0, b"has ***\n")
    secrets = subprocess.run(
        ["grep", "-rl", "a-value-to-hide", "--exclude=run.sh", str(batch.path)], capture_output=True
    )
    assert secrets.stdout == b""


# -- the GPUs that Slurm allocated -----------------------------------------------------------------------------------

FOUR = Plan(gpu_locks=GpuRequest(4, by="slurm"), container=ContainerRules("none"))
SLURMS = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "ENROOT_X": "1", "APPTAINER_X": "1", "HOME": "/h"}
SHOW = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.mark.parametrize(
    ("given", "visible"),
    [
        ("4,5,6,7", "4,5,6,7"),
        ("0,1,2,3,4,5,6,7", "0,1,2,3"),  # a node of its own has all GPUs
        ("GPU-a,GPU-b,GPU-c,GPU-d", "GPU-a,GPU-b,GPU-c,GPU-d"),
    ],
)
def test_a_job_has_as_many_of_its_gpus_as_it_needs(given: str, visible: str) -> None:
    assert supervisor.job_variables(FOUR, {"CUDA_VISIBLE_DEVICES": given}) == {"CUDA_VISIBLE_DEVICES": visible}


@pytest.mark.parametrize("visible", [None, "", "NoDevFiles", "0,1"])
def test_a_job_with_too_few_gpus_cannot_start(visible: str | None) -> None:
    with pytest.raises(ResourcesUnavailable, match="the row needs 4"):
        supervisor.job_variables(FOUR, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("runtime", "names"),
    [
        ("none", {"SLURM_JOB_ID"}),
        ("apptainer", {"SLURM_JOB_ID", "APPTAINER_X"}),
        ("pyxis", {"SLURM_JOB_ID", "SLURM_PROCID", "ENROOT_X"}),
    ],
)  # fmt: skip
def test_a_job_gets_the_variables_of_slurm_that_it_needs(runtime: str, names: set[str]) -> None:
    plan = Plan(container=ContainerRules(runtime))
    assert set(supervisor.job_variables(plan, SLURMS)) == names


def test_the_replaced_lock_script_takes_slurms_gpus_and_becomes_the_command(tmp_path: Path) -> None:
    script = tmp_path / "tests/ci/gpu_lock_exec.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('the checkout’s own')")
    supervisor.replace_lock_script(str(script), ["6", "7"])
    output = _run(
        script, "--count", "1", "--total-gpus", "8", "--", sys.executable, "-c", f"{SHOW}; raise SystemExit(9)"
    )
    assert (output.returncode, output.stdout) == (9, "[gpu_lock_exec] Acquired GPUs: 6\n6\n")
    output = _run(script, "--count", "4", "--", "true")
    assert (output.returncode, output.stderr) == (1, "[gpu_lock_exec] Slurm allocated the GPUs 6,7, and 4 are needed\n")


def _run(script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    return subprocess.run([sys.executable, str(script), *args], env=env, capture_output=True, text=True, check=False)
