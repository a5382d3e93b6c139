"""What this machine and a Slurm cluster do with rows, through the real agent where that matters."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.records import Plan, QueryAnswer, SlurmAllocation, Status
from ci_tasks.agent.run_directory import RunDir, read_plan, read_status
from ci_tasks.config import HostSpec
from ci_tasks.hosts import executor, queries
from ci_tasks.hosts.executor import Executor, InstallLog, LocalExecutor, PreparedRow, SlurmExecutor, take_host_snapshot
from ci_tasks.hosts.runs import KILL, WATCHING, RemoteRun
from ci_tasks.planning.placement import HostFacts
from ci_tasks.records import BLOCKED
from ci_tasks.results.store import Batch
from tests.parts.git import git, repository


class Local:
    """An executor with the snapshot of an edited checkout, and what it says."""

    def __init__(self, path: Path) -> None:
        self.batch, self.source, self.messages = Batch("b", path / "runs/b"), path / "checkout", list[str]()
        self.opened: list[LocalExecutor] = []
        self.open()

    def open(self) -> None:
        """As another command that goes on with the batch."""
        self.executor = LocalExecutor(HostSpec("local", runtime="none"))
        self.opened.append(self.executor)
        self.code = take_host_snapshot(self.source, None)
        self.executor.use(self.batch, self.code)

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

    def install(self, steps: str, wanted: Callable[[], bool] = lambda: True) -> str | None:
        directory = f"{self.executor.paths(RunDir(str(self.batch.path / '01'))).setups}/key"
        script = f'cd "$CI_TASKS_RUN_DIR" || exit; {steps}\n'
        setup = Plan(
            id="key", workspace=f"{directory}/workspace", script=script, keeps_workspace=True, client_seconds=2.0,
            container=ContainerRules("none"),
        )  # fmt: skip
        return self.executor.run_install_steps([setup], self.messages.append, wanted)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    source = repository(tmp_path / "checkout", {"test.py": "honest\n"})
    git(source, "update-ref", "refs/remotes/origin/main", "HEAD")
    (source / "test.py").write_text("honest, and edited\n")
    made = Local(tmp_path)
    yield made
    for opened in made.opened:
        opened.close()


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


@pytest.mark.parametrize(("hours", "goes"), [(23, False), (25, True)])
def test_a_checkouts_store_that_was_not_used_for_long_goes_once_a_day(local: Local, hours: int, goes: bool) -> None:
    local.executor.connection.cache.pruned_at = time.time() - hours * 3600
    (old := local.batch.path.parent.parent / "sync/old/recorded").mkdir(parents=True)
    os.utime(old.parent, (0, 0))
    local.executor.close()
    assert old.parent.exists() != goes and local.code.store.exists()


def test_the_log_of_install_steps_is_passed_on_by_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = RunDir(str(tmp_path)), list[str]()
    log = InstallLog(run, said.append)
    for text in ("Collecting a\nci-tasks: 2 pack", "ages, new\n", "done\n"):
        with open(run.log, "a") as out:
            out.write(text)
        log.poll()
    monkeypatch.setattr(executor, "_REMINDER_S", 0.0)
    log.finish(0)
    assert said[1] == "2 packages, new"
    assert "install steps: 0 s: done" in said
    assert [line.rpartition(": ")[2][:7] for line in said[2:]] == ["done", "done in"]


INSTALL = "cat workspace/test.py >> ../installed; mkdir venv; echo ci-tasks: stored; echo pip"


def test_install_steps_see_the_checkout_run_once_and_leave_log_and_plan(local: Local) -> None:
    assert local.install(INSTALL) is None
    directory = local.batch.path / "environments/key"
    assert local.messages[0] == f"install steps: running, log {directory}/log"
    assert local.messages[1] == "stored"
    assert local.messages[-1].startswith("install steps: done in ")
    local.open()  # without a close: that command was killed
    assert local.install(INSTALL) is None
    assert directory.with_name("installed").read_text() == "honest, and edited\n"
    local.executor.close()
    assert (directory / "log").exists() and (directory / "plan.json").exists()
    assert not (directory / "workspace").exists() and not (directory / "venv").exists()


def test_what_they_installed_stays_for_a_row_that_is_kept(local: Local) -> None:
    assert local.install(INSTALL) is None
    row = local.start("02", "exit 3", keep=True)
    local.wait(row)
    local.executor.release(row)
    local.executor.close()
    assert (local.batch.path / "environments/key/venv").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_only_a_run_that_is_kept_keeps_its_agent(local: Local, keep: bool) -> None:
    local.wait(row := local.start("02", "exit 3", keep=keep))
    local.executor.release(row)
    assert os.path.exists(row.run.agent) == os.path.exists(row.run.workspace) == keep


def test_steps_that_fail_are_a_problem_with_the_line_that_says_why_and_run_again(local: Local) -> None:
    problem = local.install("echo no such wheel; exit 3")
    log = f"{local.batch.path}/environments/key/log"
    assert problem == f"the install steps ended with 3: no such wheel (log {log})"
    local.open()
    assert local.install(INSTALL) is None


def test_a_cancelled_command_ends_its_install_steps(local: Local) -> None:
    with pytest.raises(KeyboardInterrupt):
        local.install("echo ci-tasks: 2 wheels; sleep 20", lambda: "2 wheels" not in local.messages)
    local.executor.close()
    assert not processes.of_run(f"{local.batch.path}/environments/key", None)


def test_a_second_interrupt_kills_install_steps_and_nothing_of_them_is_left(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = [], local.executor.wait
    directory = local.batch.path / "environments/key"
    venv = directory / "venv"

    def interrupted_wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            raise KeyboardInterrupt
        wait(seconds)

    monkeypatch.setattr(local.executor, "wait", interrupted_wait)
    with pytest.raises(KeyboardInterrupt):
        local.install("trap '' TERM INT; mkdir venv; while :; do sleep 1; done", lambda: not venv.exists())
    assert not processes.of_run(str(directory), None)
    assert local.executor._setups[str(directory)].cancel_requested == KILL
    local.executor.close()
    assert not venv.exists() and not (directory / "workspace").exists()


SPEC = HostSpec(name="cluster", kind="slurm", address="login", gpus=8)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SlurmExecutor:
    """Without a link to anywhere."""
    answers = {"partitions": QueryAnswer(0, "main*|20:00\n")}
    line = SimpleNamespace(drain_messages=list, run_queries=lambda queries, timeout: answers)
    monkeypatch.setattr(executor, "open_connection", lambda spec: line)
    return SlurmExecutor(SPEC)


def rows(cluster: SlurmExecutor, *statuses: Status) -> list[Any]:
    """Rows that were sent, with what the host says of each."""
    prepared = []
    for number, status in enumerate(statuses):
        mirror: Any = SimpleNamespace(status=status)
        cluster._rows[str(number)] = RemoteRun(RunDir(str(number)), "/there", phase=WATCHING, mirror=mirror)
        prepared.append(SimpleNamespace(run=SimpleNamespace(path=str(number))))
    return prepared


def test_a_row_has_begun_as_soon_as_slurm_has_it(cluster: SlurmExecutor) -> None:
    sent, queued = rows(cluster, Status(waiting=("Slurm: being submitted",)), Status(slurm=SlurmAllocation("12")))
    assert [cluster.poll(row).has_started for row in (sent, queued)] == [False, True]


def test_a_partitions_time_limit_counts_in_the_plan_and_in_the_request_to_slurm(
    cluster: SlurmExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Executor, "facts", lambda *args, **more: HostFacts(gpus=8))
    cluster.facts(gpus=0, container=False, simulates=False)
    run = RunDir(str(tmp_path))
    cluster.write_plan(run, Plan(timeout_minutes=30))
    assert read_plan(run).timeout_minutes == 15
    assert "#SBATCH --time=20" in (tmp_path / "batch.sh").read_text().splitlines()


@pytest.mark.parametrize(("container", "asked"), [(False, 0), (True, 1)])
def test_docker_is_asked_about_only_for_rows_with_a_container(
    local: Local, monkeypatch: pytest.MonkeyPatch, container: bool, asked: int
) -> None:
    query = mock.Mock(side_effect=queries.fact_queries)
    monkeypatch.setattr(queries, "fact_queries", query)
    with closing(LocalExecutor(HostSpec("local", runtime="docker"))) as executor:
        executor.facts(gpus=0, container=container, simulates=False)
    assert query.call_count == asked


def test_a_row_wider_than_every_node_is_told_so(cluster: SlurmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = HostFacts(gpus=8)
    monkeypatch.setattr(Executor, "facts", lambda *args, **more: facts)
    assert cluster.facts(gpus=8, container=False, simulates=False) == facts
    assert cluster.facts(gpus=16, container=False, simulates=False) == replace(facts, gpu_problem="no node has more")
