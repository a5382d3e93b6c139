"""This machine as a host: every row runs the tree that the command began with, whatever jobs do to the clone."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.agent.setup_manifest import check_setup
from ci_tasks.config import HostSpec
from ci_tasks.errors import CheckoutError
from ci_tasks.hosts import local_runs, python
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.local_executor import LocalExecutor
from ci_tasks.records import BLOCKED, Plan
from ci_tasks.results.store import Batch


def git(directory: Path, *args: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.com")
    done = subprocess.run(["git", *identity, *args], cwd=directory, text=True, capture_output=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    source = tmp_path / "checkout"
    source.mkdir()
    git(source, "init", "-q")
    (source / "test.py").write_text("honest\n")
    git(source, "add", "--all")
    git(source, "commit", "-q", "-m", "first")
    git(source, "update-ref", "refs/remotes/origin/main", "HEAD")
    (source / "test.py").write_text("honest, and edited\n")
    return Batch("batch", tmp_path / "batch")


def _commit(clone: Path) -> None:
    (clone / "test.py").write_text("forged\n")
    git(clone, "commit", "-q", "-a", "-m", "forged")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")


def _edit(clone: Path) -> None:
    (clone / "test.py").write_text("forged\n")
    (clone / "conftest.py").write_text("forged\n")


def _configure(clone: Path) -> None:
    git(clone, "config", "filter.forge.smudge", "echo forged; cat")
    (clone / ".git/info").mkdir(exist_ok=True)
    (clone / ".git/info/attributes").write_text("* filter=forge\n")


@pytest.mark.parametrize("forgery", [_commit, _edit, _configure], ids=lambda forgery: forgery.__name__.strip("_"))
def test_what_a_job_does_to_the_clone_reaches_no_other_row(
    batch: Batch, tmp_path: Path, forgery: Callable[[Path], None]
) -> None:
    code = LocalExecutor(HostSpec(name="local", kind="local")).snapshot(
        batch, tmp_path / "checkout", rev=None, base=None
    )
    forgery(batch.source)
    code.check_out(str(tmp_path / "row"))
    assert sorted(os.listdir(tmp_path / "row")) == [".git", "test.py"]
    assert (tmp_path / "row/test.py").read_text() == "honest, and edited\n"
    assert git(tmp_path / "row", "rev-parse", "HEAD^", "origin/main").split() == [code.checkout.head] * 2


def test_an_object_that_a_job_rewrote_is_an_error_that_names_the_file(batch: Batch, tmp_path: Path) -> None:
    code = LocalExecutor(HostSpec(name="local", kind="local")).snapshot(
        batch, tmp_path / "checkout", rev=None, base=None
    )
    blob = git(batch.source, "rev-parse", "HEAD:test.py")
    path = batch.source / ".git/objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 7\0forged\n"))
    with pytest.raises(CheckoutError, match=r"is not its tree: .*(test\.py|missing or damaged)"):
        code.check_out(str(tmp_path / "row"))


def test_a_row_does_not_start_in_a_venv_that_an_earlier_row_has_changed(tmp_path: Path) -> None:
    (tmp_path / "setup/venv").mkdir(parents=True)
    (tmp_path / "setup/venv/module.py").write_text("honest\n")
    check_setup(str(tmp_path / "setup"))
    (tmp_path / "setup/venv/module.py").write_text("forged\n")
    executor = LocalExecutor(HostSpec(name="local", kind="local"))
    plan, run = Plan(id="b.01", setup=str(tmp_path / "setup")), RunDir(str(tmp_path / "run"))
    row = PreparedRow(row=cast(Any, None), plan=plan, run=run, setup=None, executor=executor)
    executor.start(row)
    executor.close()
    status, why = executor.poll(row).aborted or ("", "")
    assert status == BLOCKED
    assert "what the install steps made is not as they left it: 1 file differs (venv/module.py);" in why


def test_interpreters_are_looked_for_once_a_command_and_not_once_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["3.10.1", "3.11.2", "3.10.3"])
    monkeypatch.setattr(python, "find_python", lambda spec: (f"/usr/bin/python{spec}", next(versions)))
    executor = LocalExecutor(HostSpec(name="local", kind="local"))
    found = [executor.find_python(spec)[1] for spec in ("3.10", "3.11", "3.10")]
    assert found == ["3.10.1", "3.11.2", "3.10.1"]


def test_a_row_runs_from_its_start_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    executor = LocalExecutor(HostSpec(name="local", kind="local"))
    rows = []
    for name in ("01", "02"):
        script = "until [ -e go ]; do sleep 0.02; done; echo $TOKEN; exit 3"
        plan = Plan(id=name, script=script, keeps_workspace=True, secrets=("TOKEN",))
        run = RunDir(str(tmp_path / "runs/batch" / name))
        rows.append(PreparedRow(cast(Any, None), plan, run, None, executor, secrets={"TOKEN": "for it alone"}))
        executor.write_plan(run, plan)
        executor.start(rows[-1])
    try:
        for row in rows:
            while not Path(row.run.log).exists():
                executor.wait(0.01)
            assert not executor.poll(row).is_complete
            Path(row.run.path, "go").touch()
        for row in rows:
            while not executor.poll(row).is_complete:
                executor.wait(0.01)
    finally:
        executor.close()
    assert [local_runs.read_run_status(row.run).exit_code for row in rows] == [3, 3]
    assert [Path(row.run.log).read_text() for row in rows] == ["***\n"] * 2


def test_a_row_that_is_cancelled_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    executor = LocalExecutor(HostSpec(name="local", kind="local"))
    plan = Plan(id="01", script="trap '' TERM; while :; do sleep 0.1; done", keeps_workspace=True, grace_seconds=60)
    run = RunDir(str(tmp_path / "runs/batch/01"))
    row = PreparedRow(cast(Any, None), plan, run, None, executor)
    executor.write_plan(run, plan)
    executor.start(row)
    try:
        while not local_runs.read_run_status(run).exists:
            executor.wait(0.01)
        for kill in (False, True, True):
            executor.cancel([row], kill=kill)
        while not executor.poll(row).is_complete:
            executor.wait(0.01)
    finally:
        executor.close()
    assert local_runs.read_run_status(run).end == "cancelled"
