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


def test_start_returns_while_the_job_runs_and_the_agent_is_nobodys_child(run: Run, until: Until) -> None:
    run.start('until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done')
    until(lambda: run.status().group is not None)
    status = run.status()
    assert processes.alive(status)
    assert os.getsid(status.pid or -1) != os.getsid(0)
    assert os.getsid(status.group or -1) == status.group
    parent = int(Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid()
    (run.path / "go").touch()
    assert run.ended().exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
def test_the_run_goes_on_when_its_client_is_killed_right_after_the_start(run: Run, number: int, until: Until) -> None:
    """The client's whole session dies, as with a dropped link."""
    run.write('until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done; echo survived')
    client = subprocess.Popen(
        ["bash", "-c", '"$0" "$@"; sleep 300', *run.words("start")],
        start_new_session=True,
    )
    until(lambda: run.status().state == "running")
    os.killpg(client.pid, number)
    os.killpg(client.pid, signal.SIGKILL)  # bash goes on after a ^C that the starter did not die of
    client.wait()
    (run.path / "go").touch()
    assert run.ended().exit_code == 0
    assert run.log() == b"survived\n"


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


def _no_plan(run: Run) -> None:
    os.unlink(run.paths.plan)


def _broken_plan(run: Run) -> None:
    Path(run.paths.plan).write_text('{"timeout_minutes": ')


def _plan_with_a_text_for_a_number(run: Run) -> None:
    Path(run.paths.plan).write_text('{"timeout_minutes": "90"}')


def _log_is_a_directory(run: Run) -> None:
    os.mkdir(run.paths.log)


BEFORE = [
    (_no_plan, b"plan.json: missing"),
    (_broken_plan, b"Expecting value"),
    (_plan_with_a_text_for_a_number, b"plan.json: timeout_minutes: expected float, got str"),
    (_log_is_a_directory, b"Is a directory"),
]


@pytest.mark.parametrize(("spoil", "message"), BEFORE, ids=[spoil.__name__ for spoil, _ in BEFORE])
def test_what_cannot_begin_says_why_and_leaves_no_job(run: Run, spoil: Callable[[Run], None], message: bytes) -> None:
    run.write('touch "$CI_TASKS_RUN_DIR/ran"')
    spoil(run)
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
