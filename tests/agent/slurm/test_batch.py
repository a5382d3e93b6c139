"""The agent as a batch job: in the foreground, on Slurm's GPUs, again after a requeue, and never two at once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import run_directory
from ci_tasks.agent.records import SlurmAllocation, SlurmJob, SlurmStart, Status
from ci_tasks.agent.slurm import job_file

SLURM = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu1", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"}
TWO = {"by": "slurm", "count": 2, "script": None}


@pytest.fixture
def batch(new_run: Callable[..., Any], tmp_path: Path) -> Any:
    """A run that Slurm is about to begin."""
    run = new_run()
    job_file.write(str(run.path), SlurmJob(home=str(tmp_path), name="n", id="7"))
    run.batch = lambda **environ: run.call("batch", str(run.path), **{**SLURM, **environ})
    return run


def in_background(run: Any) -> threading.Thread:
    thread = threading.Thread(target=run.batch)
    thread.start()
    return thread


def wait_until(condition: Callable[[], Any]) -> None:
    thread = threading.Event()
    for _ in range(2000):
        if condition():
            return
        thread.wait(0.01)
    pytest.fail("not within 20 s")


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
    assert batch.batch().returncode == 143
    assert batch.batch(SLURM_RESTART_COUNT="1").returncode == 0
    again = b"ci-tasks: Slurm started the job again (requeue 1), on gpu1; it starts over in a new checkout\n"
    assert batch.log() == b"begun\n" + again + b"begun\n"
    status = batch.status()
    assert (status.exit_code, status.slurm and status.slurm.restarts) == (0, 1)
    assert (status.log_bytes, status.log_sha256) == (len(batch.log()), hashlib.sha256(batch.log()).hexdigest())
    assert [path.name for path in Path(batch.paths.artifacts).iterdir()] == ["2"], "the first attempt's are gone"


def test_a_signal_to_all_of_a_job_is_on_record(batch: Any) -> None:
    batch.write("echo begun; sleep 60\n")
    thread = in_background(batch)
    wait_until(lambda: batch.status().group and batch.log())
    # As Slurm does it: the agent and its job, at once.
    os.killpg(batch.status().group, signal.SIGTERM)
    os.kill(batch.status().pid, signal.SIGTERM)
    thread.join(20)
    assert batch.status().signalled is True


def test_an_agent_on_a_node_that_was_thought_dead_gives_way(batch: Any) -> None:
    batch.write("echo begun; sleep 60\n")
    thread = in_background(batch)
    wait_until(lambda: batch.status().group and batch.log())
    job_file.write_attempt(str(batch.path), SlurmStart(1, None, None, "7", 1))
    record = Status("running", error="the other agent's")
    run_directory.write_record(batch.paths.status, record)
    thread.join(20)
    assert not thread.is_alive()
    assert batch.status() == record
    wait_until(lambda: batch.alive() == [])


def test_secrets_reach_the_job_and_are_gone_with_its_end(batch: Any) -> None:
    job_file.write_secrets(str(batch.path), {"TOKEN": "a-value-to-hide"})
    batch.write('[ "$TOKEN" = a-value-to-hide ] && echo has $TOKEN\n', secrets=["TOKEN"])
    assert batch.batch().returncode == 0
    assert batch.log() == b"has ***\n"
    secrets = subprocess.run(
        ["grep", "-rl", "a-value-to-hide", "--exclude=run.sh", str(batch.path)], capture_output=True
    )
    assert secrets.stdout == b""
