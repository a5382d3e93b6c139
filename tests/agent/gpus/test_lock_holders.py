"""Who a process is, in words."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.gpus import lock_holders

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

ME = getpass.getuser()


def _run(path: Path, **plan: str) -> str:
    path.mkdir(parents=True)
    (path / "plan.json").write_text(json.dumps(plan))
    return str(path)


def test_a_process_of_a_run_is_told_by_its_mark(gpu_host: GpuHost, tmp_path: Path) -> None:
    run = _run(tmp_path / "20260102-030405-ckpt-ab12" / "03", id="20260102-030405-ckpt.03")
    holder = gpu_host.hold(0, CI_TASKS_RUN_DIR=run)
    assert lock_holders.run_dir_of(holder.pid) == run
    assert lock_holders.describe_process(holder.pid) == f"run 20260102-030405-ckpt.03 of {ME} for less than a minute"


def test_a_run_whose_directory_is_gone_is_called_by_it(gpu_host: GpuHost) -> None:
    holder = gpu_host.hold(0, CI_TASKS_RUN_DIR="/no/such/batch/03")
    assert lock_holders.describe_process(holder.pid) == "run batch.03 for less than a minute"


def test_an_agent_is_recognized_by_its_working_directory(gpu_host: GpuHost, tmp_path: Path) -> None:
    run = _run(tmp_path / "batch" / "01", id="batch.01")
    agent = gpu_host.start(["sh", "-c", f"cd {run} && exec sleep 300"])
    other = gpu_host.start(["sh", "-c", f"cd {run} && exec sleep 300"])
    (tmp_path / "batch" / "01" / "status.json").write_text(json.dumps({"pid": agent.pid}))
    while b"sleep" not in Path(f"/proc/{agent.pid}/cmdline").read_bytes()[:5]:
        pass
    assert (lock_holders.run_dir_of(agent.pid), lock_holders.run_dir_of(other.pid)) == (run, None)


def test_any_other_process_is_its_command_line_in_one_line_with_secrets_hidden(gpu_host: GpuHost) -> None:
    process = gpu_host.start(["sh", "-c", "read x", "A_TOKEN=verysecret", "two\nlines", "é"])
    while b"A_TOKEN" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        pass
    command_line = "sh -c 'read x' 'A_TOKEN=***' 'two?lines' 'é'"
    assert (
        lock_holders.describe_process(process.pid)
        == f"pid {process.pid} of {ME} ({command_line}) for less than a minute"
    )


def test_a_long_command_line_is_shortened(gpu_host: GpuHost) -> None:
    text = lock_holders.describe_process(gpu_host.hold(0).pid)
    assert re.fullmatch(rf"pid \d+ of {ME} \(.{{59}}…\) for less than a minute", text)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_a_process_that_cannot_be_seen_is_unknown(pid: int) -> None:
    assert (lock_holders.run_dir_of(pid), lock_holders.describe_process(pid)) == (None, "an unknown process")


def test_time_is_told_in_minutes_and_hours(gpu_host: GpuHost) -> None:
    pid = gpu_host.hold(0).pid
    ticks = processes.start_time(pid)
    assert ticks is not None
    started = int(ticks) / os.sysconf("SC_CLK_TCK")  # seconds after boot
    ends = [lock_holders.describe_process(pid, started + seconds).rpartition(" for ")[2] for seconds in (30, 725, 7500)]
    assert ends == ["less than a minute", "12 min", "2 h"]


IDS = [([5], "GPU 5"), ([0, 1, 2, 3], "GPUs 0-3"), ([7, 0, 2, 5, 6], "GPUs 0, 2, 5-7"), ([1, 2], "GPUs 1-2")]


@pytest.mark.parametrize(("gpus", "expected"), IDS, ids=[expected for _, expected in IDS])
def test_gpus_are_named_shortly(gpus: list[int], expected: str) -> None:
    assert lock_holders.numbered("GPU", gpus) == expected


def test_gpus_of_which_the_same_is_said_share_a_sentence() -> None:
    text = {0: " held by a", 1: " held by a", 2: " held by b", 4: " held by a", 5: ": 61 GiB in use"}
    assert lock_holders.group_by_reason(text) == ["GPUs 0-1, 4 held by a", "GPU 2 held by b", "GPU 5: 61 GiB in use"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_persons_process_is_named_although_its_environment_cannot_be_read() -> None:
    sleeper = subprocess.Popen(["sleep", "300"], env={"CI_TASKS_RUN_DIR": "/a/run/01", "PATH": os.environ["PATH"]})
    room = Path(lock_holders.__file__).parents[3]
    text = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from ci_tasks.agent.gpus import lock_holders as holders\n"
        "holders.describe_process(os.getpid()); os.seteuid(65534); print(holders.describe_process(int(sys.argv[2])))"
    )
    try:
        command = [sys.executable, "-c", text, str(room), str(sleeper.pid)]
        description = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        sleeper.kill()
        sleeper.wait()
    assert description == f"pid {sleeper.pid} of root (sleep 300) for less than a minute\n"
