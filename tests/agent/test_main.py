"""agent.pyz as a program: what it starts, what it refuses, and what it lets go of."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import processes
from tests.parts.json_files import write_json

if TYPE_CHECKING:
    from tests.agent.conftest import Run

Until = Callable[..., Any]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
def test_the_run_goes_on_when_its_client_is_killed_right_after_the_start(run: Run, number: int, until: Until) -> None:
    """The client's whole session dies, as with a dropped link."""
    run.write('until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done; echo survived')
    client = subprocess.Popen(["bash", "-c", '"$0" "$@"; sleep 300', *run.words("start")], start_new_session=True)
    until(lambda: run.status().group)
    assert os.getsid(run.status().pid or -1) not in (os.getsid(0), client.pid)
    assert os.getsid(run.status().group or -1) == run.status().group, "no process can join the job's session"
    os.killpg(client.pid, number)
    os.killpg(client.pid, signal.SIGKILL)  # bash goes on after a ^C that the starter did not die of
    client.wait()
    (run.path / "go").touch()
    assert (run.ended().exit_code, run.log()) == (0, b"survived\n")


def test_the_agent_holds_nothing_of_its_caller(run: Run, until: Until, tmp_path: Path) -> None:
    """No pipe that its caller waits for, no lock, no directory."""
    held = tmp_path / "held"
    run.write("sleep 300")
    command = ["bash", "-c", 'exec 7> "$0"; exec "$@"', str(held), *run.words("start")]
    done = subprocess.run(command, capture_output=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 0
    status = run.status()
    files = {os.readlink(entry) for entry in Path(f"/proc/{status.pid}/fd").iterdir()}
    assert str(held) not in files
    assert os.readlink(f"/proc/{status.pid}/cwd") == str(run.path)


BEFORE = [  # plan.json, and why the run does not begin
    (None, b"plan.json: missing"),
    ('{"timeout_minutes": ', b"Expecting value"),
    ('{"timeout_minutes": "90"}', b"plan.json: timeout_minutes: expected float, got str"),
    ("{}", b"Is a directory"),
]


@pytest.mark.parametrize(("plan", "message"), BEFORE)
def test_what_cannot_begin_says_why_and_leaves_no_job(run: Run, plan: str | None, message: bytes) -> None:
    run.write('touch "$CI_TASKS_RUN_DIR/ran"')
    os.unlink(run.paths.plan)
    if plan is not None:
        Path(run.paths.plan).write_text(plan)
    if plan == "{}":
        os.mkdir(run.paths.log)
    done = run.call("start")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert not run.has("status.json")
    assert not run.has("ran")
    assert not run.alive()


def test_cancel_never_signals_a_group_whose_number_belongs_to_somebody_else(run: Run) -> None:
    """An agent that died long ago left a number behind; meanwhile it is another program's."""
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        for boot in (processes.boot_id(), "an earlier boot"):
            run.write("exit 0")
            status = {"state": "running", "pid": 2**22, "pid_start": "1", "boot_id": boot, "group": stranger.pid}
            write_json(run.paths.status, status)
            run.cancel()
            assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
