"""This machine as a host: every row runs the tree that the command began with, whatever jobs do to the clone; install
steps run once."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_status
from ci_tasks.config import HostSpec
from ci_tasks.hosts.local_executor import LocalExecutor
from ci_tasks.hosts.prepared_row import PreparedRow
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.records import BLOCKED
from ci_tasks.results.store import Batch


def git(directory: Path, *args: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.com")
    done = subprocess.run(["git", *identity, *args], cwd=directory, text=True, capture_output=True, check=True)
    return done.stdout.strip()


class Local:
    """An executor with the snapshot of an edited checkout, and what it says."""

    def __init__(self, path: Path) -> None:
        self.batch, self.source, self.messages = Batch("b", path / "runs/b"), path / "checkout", list[str]()
        self.open()

    def open(self) -> None:
        """As another command that goes on with the batch."""
        self.executor = LocalExecutor(HostSpec("local", runtime="none"))
        self.code = self.executor.snapshot(self.batch, self.source, rev=None, base=None)

    def start(self, name: str, script: str, **more: Any) -> PreparedRow:
        run = RunDir(str(self.batch.path / name))
        plan = Plan(id=name, script=script, workspace=run.workspace, **more)
        row = PreparedRow(cast(Any, None), plan, run, None, secrets={"TOKEN": "for it alone"})
        self.executor.write_plan(run, plan)
        self.executor.start(row)
        return row

    def wait(self, row: PreparedRow) -> None:
        while not self.executor.poll(row).is_over:
            self.executor.wait(0.01)

    def install(self, steps: str, wanted: bool = True) -> str | None:
        directory = f"{self.executor.paths(RunDir(str(self.batch.path / '01'))).setups}/key"
        script = f'cd "$CI_TASKS_RUN_DIR" || exit; {steps}\n'
        setup = SharedSetup(directory, f"{directory}/workspace", script)
        return self.executor.run_install_steps([setup], self.messages.append, lambda: wanted)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    source = tmp_path / "checkout"
    source.mkdir()
    git(source, "init", "-q")
    (source / "test.py").write_text("honest\n")
    git(source, "add", "--all")
    git(source, "commit", "-q", "-m", "first")
    git(source, "update-ref", "refs/remotes/origin/main", "HEAD")
    (source / "test.py").write_text("honest, and edited\n")
    made = Local(tmp_path)
    yield made
    made.executor.close()


FORGERIES = {
    "the next rows' objects": "for file in ../../../store.git/objects/pack/*; do chmod u+w $file; : > $file; done",
    "its own repository": "git config filter.forge.smudge 'echo forged; cat'; echo '* filter=forge' > .gitattributes",
    "its files": "echo forged > test.py; echo forged > conftest.py",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_a_job_does_reaches_no_later_row(local: Local, forgery: str) -> None:
    local.wait(local.start("01", f'cd "$CI_TASKS_RUN_DIR/workspace"; {FORGERIES[forgery]}'))
    row = local.start("02", 'cd "$CI_TASKS_RUN_DIR/workspace" && ls && cat test.py && git rev-parse HEAD')
    local.wait(row)
    assert Path(row.run.log).read_text().splitlines() == ["test.py", "honest, and edited", local.code.checkout.commit]


def test_an_object_that_a_job_rewrote_blocks_the_row(local: Local) -> None:
    blob = git(local.source, "hash-object", "test.py")
    (path,) = local.batch.path.parent.parent.glob(f"sync/*/recorded/{blob[:2]}/{blob[2:]}")
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 7\0forged\n"))
    row = local.start("01", "cat workspace/test.py")
    local.wait(row)
    status, _ = local.executor.poll(row).aborted or ("", "")
    assert status == BLOCKED
    assert not Path(row.run.log).exists()


def test_rows_run_beside_each_other_from_start_to_end_with_their_secrets_masked(local: Local) -> None:
    script = "until [ -e go ]; do sleep 0.02; done; echo $TOKEN; exit 3"
    rows = [local.start(name, script, secrets=("TOKEN",)) for name in ("01", "02")]
    for row in rows:
        while not Path(row.run.log).exists():
            local.executor.wait(0.01)
        assert not local.executor.poll(row).is_over
        Path(row.run.path, "go").touch()
    for row in rows:
        local.wait(row)
    assert [read_status(row.run).exit_code for row in rows] == [3, 3]
    assert [Path(row.run.log).read_text() for row in rows] == ["***\n"] * 2


INSTALL = "cat workspace/test.py >> installed; mkdir venv; echo ci-tasks: stored; echo pip"


def test_install_steps_see_the_checkout_run_once_and_leave_log_and_plan(local: Local) -> None:
    assert local.install(INSTALL) is None
    directory = local.batch.path / "environments/key"
    assert local.messages[0] == f"install steps: running, log {directory}/log"
    assert local.messages[1] == "stored"
    assert local.messages[-1].startswith("install steps: done in ")
    local.open()  # without a close: that command was killed
    assert local.install(INSTALL) is None
    assert (directory / "installed").read_text() == "honest, and edited\n"
    local.executor.close()
    assert (directory / "log").exists() and (directory / "plan.json").exists()
    assert not (directory / "workspace").exists() and not (directory / "venv").exists()


def test_steps_that_fail_are_a_problem_with_the_line_that_says_why_and_run_again(local: Local) -> None:
    problem = local.install("echo no such wheel; exit 3")
    log = f"{local.batch.path}/environments/key/log"
    assert problem == f"the install steps ended with 3: no such wheel (log {log})"
    local.open()
    assert local.install(INSTALL) is None


def test_a_cancelled_command_ends_its_install_steps(local: Local) -> None:
    with pytest.raises(KeyboardInterrupt):
        local.install("sleep 300", wanted=False)
    assert not processes.of_run(f"{local.batch.path}/environments/key", None)


def test_a_snapshot_of_another_host_of_the_command_is_used_again(local: Local) -> None:
    other = LocalExecutor(HostSpec("sim", runtime="none"))
    other.use_snapshot(local.code)
    assert other.snapshot(local.batch, local.source, rev=None, base=None) is local.code
