"""The install steps that rows share: run once, reused when that is asked for and they are the same."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.checkout.snapshot import materialize
from ci_tasks.config import HostSpec
from ci_tasks.executors import shared_venvs
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.results.store import Batch

HOST = HostSpec("local", runtime="none")
INSTALL = "cat workspace/requirements >> installed; touch ready"


class Rows:
    """The rows of one command that share install steps, in `environments/key`; `messages` is what they print."""

    def __init__(self, path: Path) -> None:
        self.batch = Batch("b", path / "batch")
        self.directory = path / "environments" / "key"
        self.messages: list[str] = []
        self.batch.source.mkdir(parents=True)
        self.git("init", "-q")
        self.commit("numpy\n")

    def git(self, *argv: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *argv], cwd=self.batch.source, check=True)

    def commit(self, requirements: str) -> None:
        (self.batch.source / "requirements").write_text(requirements)
        self.git("add", "-A")
        self.git("commit", "-qm", "1")

    def check_out(self, workspace: str) -> None:
        materialize(self.batch.source, Path(workspace))

    def setup(self, steps: str) -> SharedSetup:
        script = f'cd "$CI_TASKS_RUN_DIR" || exit; {steps}\n'
        return SharedSetup(str(self.directory), str(self.directory / "workspace"), script)

    def install(self, steps: str = INSTALL, reuse: bool = False) -> str | None:
        self.messages.clear()
        setup = self.setup(steps)
        with shared_venvs.lock_venv(setup, self.messages.append):
            problem = shared_venvs.install(setup, self.check_out, HOST, reuse, self.messages.append)
            assert (self.directory / "workspace" / "requirements").exists(), "rows see the checkout"
        assert not (self.directory / "workspace").exists()
        return problem

    @property
    def installed(self) -> str:
        return (self.directory / "installed").read_text()


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


def test_install_steps_run_anew_for_each_command_and_see_its_checkout(rows: Rows) -> None:
    assert rows.install() is None
    assert rows.messages[0] == f"install steps: running, log {rows.directory}/log"
    assert rows.messages[-1].startswith("install steps: done in ")
    rows.commit("torch\n")
    assert rows.install() is None
    assert rows.installed == "torch\n", "nothing is left of the environment before"


def test_with_reuse_the_same_steps_do_not_run_again(rows: Rows) -> None:
    assert rows.install(reuse=True) is None
    assert len(rows.messages) == 2, "nothing to reuse yet, and nothing to say of it"
    rows.commit("torch\n")
    assert rows.install(reuse=True) is None
    assert (rows.messages, rows.installed) == (["install steps: done before, reused"], "numpy\n")


def test_with_reuse_changed_steps_run_again_and_say_so(rows: Rows) -> None:
    rows.install()
    assert rows.install(f"{INSTALL}; echo extra >> installed", reuse=True) is None
    assert rows.messages[0] == "install steps: they changed since the last run, so they run again"
    assert rows.installed == "numpy\nextra\n"


def test_with_reuse_a_venv_that_a_row_changed_is_made_anew_and_the_file_is_named(rows: Rows) -> None:
    steps = f"mkdir -p venv; echo honest > venv/module.py; {INSTALL}"
    rows.install(steps)
    (rows.directory / "venv/module.py").write_text("forged\n")
    assert rows.install(steps, reuse=True) is None
    assert rows.messages[0] == "install steps: venv/module.py was changed since the last run, so they run again"
    assert (rows.directory / "venv/module.py").read_text() == "honest\n"
    rows.install(steps, reuse=True)
    assert rows.messages == ["install steps: done before, reused"]


def test_steps_that_fail_are_a_problem_with_the_line_that_says_why_and_are_never_reused(rows: Rows) -> None:
    broken = "echo no such wheel; exit 3"
    problem = f"the install steps ended with 3: no such wheel (log {rows.directory}/log)"
    assert [rows.install(broken, reuse=True) for _ in range(2)] == [problem, problem]
    assert rows.messages == [f"install steps: running, log {rows.directory}/log"]


def test_a_cancelled_command_ends_its_install_steps(rows: Rows) -> None:
    with pytest.raises(KeyboardInterrupt):
        shared_venvs.install(rows.setup("sleep 300"), rows.check_out, HOST, False, rows.messages.append, lambda: False)
    assert not processes.of_run(str(rows.directory), None)
    assert not (rows.directory / "stamp").exists(), "and the next one begins anew"


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_rows_of_another_command_wait_until_the_environment_is_free(rows: Rows, is_cancelled: bool) -> None:
    setup, order, has_said = rows.setup(INSTALL), list[str](), threading.Event()

    def say(message: str) -> None:
        order.append(message)
        has_said.set()

    def wait() -> None:
        try:
            with shared_venvs.lock_venv(setup, say, lambda: not is_cancelled):
                order.append("second")
        except KeyboardInterrupt:
            order.append("cancelled")

    with shared_venvs.lock_venv(setup, say):
        second = threading.Thread(target=wait)
        second.start()
        assert has_said.wait(60)
        if is_cancelled:
            second.join(60)
        order.append("first")
    second.join(60)
    waited = f"waiting for another run that uses {setup.directory}"
    assert order == ([waited, "cancelled", "first"] if is_cancelled else [waited, "first", "second"])
