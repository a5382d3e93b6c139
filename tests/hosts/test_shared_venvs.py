"""The install steps that the rows of a command share: run once for each command, in its own directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.checkout.clone import materialize
from ci_tasks.config import HostSpec
from ci_tasks.hosts import shared_venvs
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.results.store import Batch

HOST = HostSpec("local", runtime="none")
INSTALL = "cat workspace/requirements >> installed; mkdir venv; touch ready"


class Rows:
    """The rows of one command that share install steps, in `environments/key`; `messages` is what they print."""

    def __init__(self, path: Path) -> None:
        self.batch = Batch("b", path / "batch")
        self.directory = path / "environments" / "key"
        self.messages: list[str] = []
        self.batch.source.mkdir(parents=True)
        (self.batch.source / "requirements").write_text("numpy\n")
        for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "1"]):
            who = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", *who, *argv], cwd=self.batch.source, check=True)

    def check_out(self, workspace: str) -> None:
        materialize(self.batch.source, Path(workspace))

    def setup(self, steps: str) -> SharedSetup:
        script = f'cd "$CI_TASKS_RUN_DIR" || exit; {steps}\n'
        return SharedSetup(str(self.directory), str(self.directory / "workspace"), script)

    def install(self, steps: str = INSTALL) -> str | None:
        return shared_venvs.install(self.setup(steps), self.check_out, HOST, self.messages.append)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


def test_install_steps_see_the_checkout_and_what_they_leave_is_there_for_the_rows(rows: Rows) -> None:
    assert rows.install() is None
    assert rows.messages[0] == f"install steps: running, log {rows.directory}/log"
    assert rows.messages[-1].startswith("install steps: done in ")
    assert (rows.directory / "installed").read_text() == "numpy\n"
    assert (rows.directory / "workspace" / "requirements").exists()


def test_what_our_own_program_says_of_packages_is_passed_on(rows: Rows) -> None:
    assert rows.install(f"{INSTALL}; echo ci-tasks: stored; echo pip") is None
    assert rows.messages[-1] == "stored"


def test_afterwards_only_the_log_and_the_plan_stay(rows: Rows) -> None:
    rows.install()
    shared_venvs.remove_venv(str(rows.directory))
    assert (rows.directory / "log").exists()
    assert not (rows.directory / "workspace").exists() and not (rows.directory / "venv").exists()


def test_a_command_that_goes_on_where_another_stopped_does_not_run_them_again(rows: Rows) -> None:
    rows.install()
    assert rows.install() is None
    assert rows.messages[-1] == "install steps: done before"
    assert (rows.directory / "installed").read_text() == "numpy\n"


def test_steps_that_fail_are_a_problem_with_the_line_that_says_why(rows: Rows) -> None:
    problem = rows.install("echo no such wheel; exit 3")
    assert problem == f"the install steps ended with 3: no such wheel (log {rows.directory}/log)"
    assert rows.messages == [f"install steps: running, log {rows.directory}/log"]


def test_a_cancelled_command_ends_its_install_steps(rows: Rows) -> None:
    with pytest.raises(KeyboardInterrupt):
        shared_venvs.install(rows.setup("sleep 300"), rows.check_out, HOST, rows.messages.append, lambda: False)
    assert not processes.of_run(str(rows.directory), None)
