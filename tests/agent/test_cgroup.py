"""The job's own cgroup, where this machine lets us make one; and what is said where it does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import cgroup, processes
from ci_tasks.hosts import local_runs

if TYPE_CHECKING:
    from tests.agent.conftest import Run

Until = Callable[..., Any]

UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
HYBRID = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
PARENTS = {
    "version 2": (UNIFIED, "0::/user.slice/user-1.slice\n", "/sys/fs/cgroup/user.slice/user-1.slice"),
    "both versions": (HYBRID, "3:cpu:/x\n0::/\n", "/sys/fs/cgroup/unified"),
    "version 1": ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", "3:cpu:/x\n", ""),
    "one that is not below the mount": (UNIFIED, "0::/../../x\n", ""),
    "none": ("", "", ""),
}


@pytest.mark.parametrize(("mounts", "own", "expected"), PARENTS.values(), ids=PARENTS)
def test_the_parent_is_the_cgroup_of_the_agent(mounts: str, own: str, expected: str) -> None:
    assert cgroup.parent(mounts, own) == expected


def test_a_job_inside_of_slurm_stays_in_the_cgroup_that_slurm_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert cgroup.create(str(tmp_path)) == ""


def test_a_status_cannot_name_another_cgroup(tmp_path: Path) -> None:
    other = tmp_path / "user.slice"
    other.mkdir()
    (other / "cgroup.kill").touch()
    assert cgroup.of_run(str(tmp_path), str(other)) == ""


def test_after_its_agent_was_killed_a_hidden_process_is_ended_or_said_to_be_unseen(run: Run, until: Until) -> None:
    run.start(
        'cd "$CI_TASKS_RUN_DIR"; echo "$SHLVL $0" > shell; env -i setsid bash -c "echo \\$\\$ > pid; exec sleep 30" &\n'
        "sleep 300"
    )
    hidden = run.pid("pid")
    until(lambda: run.status().group)
    assert (run.path / "shell").read_text() == f"1 {run.paths.script}\n"
    os.kill(run.status().pid or 0, signal.SIGKILL)
    until(lambda: local_runs.has_ended(run.paths))
    run.cancel()
    status = run.status()
    if status.cgroup:
        until(lambda: processes.start_time(hidden) is None)
        assert not os.path.exists(status.cgroup)
        assert (status.error or "").endswith("processes were ended")
    else:
        assert "is not seen without its agent" in (status.error or "")
        os.kill(hidden, signal.SIGKILL)


def test_nothing_is_left_of_a_cgroup_at_the_end_of_the_run(run: Run) -> None:
    status = run.start("env -i setsid sleep 300 > /dev/null & exit 3").ended()
    assert (status.exit_code, [event.killed for event in run.events("killed")]) == (3, [1])
    assert not status.cgroup or not os.path.exists(status.cgroup)
