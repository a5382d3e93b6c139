"""This machine as an executor: run directories and the agent are local."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.cleanup.remove_run import end_and_clean
from ci_tasks.agent.cleanup.remove_tree import remove_tree
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer, Retry
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.agent.setup_copy import make_copy, restore_copy
from ci_tasks.agent.setup_manifest import WORKSPACE, SetupChanged, check_setup, forget
from ci_tasks.agent.trees.git import StoreError
from ci_tasks.agent.trees.workspace import NotKept
from ci_tasks.background import Background
from ci_tasks.checkout.clone import continue_workspace, materialize
from ci_tasks.checkout.repository import BASE, find_commit
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.given_values import OverlaySource
from ci_tasks.hosts import local_runs, py_spy, python, requirements, shared_venvs
from ci_tasks.hosts.executor import CodeSnapshot, PreparedRow, RunState, Say, secrets_of
from ci_tasks.hosts.host_snapshot import RemoteSnapshot, take_host_snapshot
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.hosts.remote_host import open_remote_host, run_state
from ci_tasks.hosts.remote_run import CANCEL, KILL, RemoteRun
from ci_tasks.hosts.run_manager import RemoteRunManager
from ci_tasks.planning.capacity import HostFacts
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.records import BLOCKED, CANCELLED, Checkout, Plan
from ci_tasks.results import store
from ci_tasks.results.store import Batch


@dataclass(frozen=True)
class LocalSnapshot:
    """The batch's clone of the working tree. `base` is its origin/main."""

    checkout: Checkout
    directory: Path
    base: str | None

    def check_out(self, workspace: str) -> None:
        """A clone of it: every row gets the same tree, whatever is edited meanwhile, by jobs in this clone too."""
        materialize(self.directory, Path(workspace), rev=self.checkout.commit, base=self.base)

    def read_file(self, path: str) -> str | None:
        file = self.directory / path
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None

    def read_files(self, directory: str, suffix: str) -> Iterator[str]:
        for file in sorted((self.directory / directory).glob(f"*{suffix}")):
            if file.is_file():
                yield file.read_text(encoding="utf-8", errors="replace")


class LocalExecutor:
    """See ci_tasks.hosts.executor.Executor."""

    _batch: Batch
    _code: LocalSnapshot
    _retry_code: RemoteSnapshot
    is_up, has_scheduler = True, False

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.lock_dir = str(store.lock_dir() / spec.name)
        self._shared: LocalSnapshot | None = None
        self._never: dict[str, tuple[str, str]] = {}
        self._runs: dict[str, RemoteRun] = {}
        self._manager: RemoteRunManager | None = None
        self._pythons: dict[str, tuple[str, str]] = {}
        self._keeps_files = False  # for rows that go on, or were kept
        self._setups: set[str] = set()
        self._copies: shared_venvs.EnvironmentCopies | None = None

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        return requirements.facts(self.spec, gpus=gpus > 0, container=container, simulates=simulates)

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return LocalQueryRunner(self.spec.env).run_queries(queries, timeout)

    def find_python(self, version_spec: str) -> tuple[str, str]:
        if version_spec not in self._pythons:
            self._pythons[version_spec] = python.find_python(version_spec)
        return self._pythons[version_spec]

    def use_snapshot(self, snapshot: Background[Snapshot]) -> None:
        pass

    def reuse_snapshot(self, code: CodeSnapshot) -> None:
        self._shared = code if isinstance(code, LocalSnapshot) else None

    def snapshot(
        self,
        batch: Batch,
        source: Path,
        *,
        rev: str | None,
        base: str | None,
        overlays: Sequence[OverlaySource] = (),
    ) -> LocalSnapshot:
        self._batch = batch
        if self._shared is not None and self._shared.directory == batch.source:
            self._code = self._shared
        else:
            made = materialize(source, batch.source, rev=rev, base=base, overlays=overlays)
            self._code = LocalSnapshot(made, batch.source, find_commit(batch.source, BASE))
        return self._code

    def snapshot_for_retry(self, batch: Batch, source: Path) -> RemoteSnapshot:
        self._batch = batch
        snapshot = take_host_snapshot(source, None, None)
        self._retry_code = RemoteSnapshot(snapshot.checkout, snapshot)
        return self._retry_code

    def run_directory(self, run: RunDir) -> str:
        return run.path

    def environments_directory(self) -> str:
        return str(self._batch.environments)

    @property
    def environment_store(self) -> str:
        return str(store.environments())

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        local_runs.write_run_dir(run, plan)

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        for row in rows:
            if row.setup is None:
                self._code.check_out(row.plan.workspace)
            elif not os.path.exists(row.setup.workspace):
                shared_venvs.write(row.setup, self.spec)
                self._code.check_out(row.setup.workspace)

    def keep_environments(self) -> None:
        self._copies = shared_venvs.EnvironmentCopies(make_copy, restore_copy, (SetupChanged, OSError))

    @contextmanager
    def prepare_environments(
        self, setups: Sequence[SharedSetup], say: Say, should_continue: Callable[[], bool] = lambda: True
    ) -> Iterator[str | None]:
        def install(setup: SharedSetup) -> str | None:
            return self._install(setup, say, should_continue)

        yield shared_venvs.prepare(setups, self._copies, install, say)

    def _install(self, setup: SharedSetup, say: Say, should_continue: Callable[[], bool]) -> str | None:
        if setup.directory in self._setups:  # of the repetition before
            remove_tree(setup.directory, None, "none", {})
        self._setups.add(setup.directory)
        return shared_venvs.install(setup, self._code.check_out, self.spec, say, should_continue)

    def start(self, row: PreparedRow) -> None:
        manager = self._agent()  # it starts while the row's code is checked out
        try:
            if row.plan.retry:
                self._update_kept(row, row.plan.retry)
            elif row.has_own_checkout:
                self._code.check_out(row.plan.workspace)
            if row.plan.setup:
                check_setup(row.plan.setup)
            py_spy.keep_here(store.home())
        except (CiTasksError, SetupChanged, OSError) as problem:  # the tree is proven: what fails now is the machine
            self._never[row.run.path] = (BLOCKED, str(problem))
            return
        manager.start(self._run_of(row))

    def _update_kept(self, row: PreparedRow, retry: Retry) -> None:
        try:
            continue_workspace(self._retry_code.snapshot, row.plan.workspace, retry, row.run.path)
        except NotKept as reason:
            raise Blocked(f"the run cannot be retried: {reason}; run its row anew") from None
        except StoreError as error:
            raise Blocked(str(error)) from None
        if row.plan.setup:  # its manifest is of the files before
            forget(row.plan.setup, WORKSPACE)

    def reattach(self, row: PreparedRow) -> None:
        self._agent().attach(self._run_of(row))

    def _agent(self) -> RemoteRunManager:
        if self._manager is None:
            self._manager = open_remote_host(replace(self.spec, workspace=str(store.home())))
        return self._manager

    def _run_of(self, row: PreparedRow) -> RemoteRun:
        secrets = {**secrets_of(row.plan.secrets, os.environ), **row.secrets}
        self._runs[row.run.path] = RemoteRun(
            run=row.run, directory=row.run.path, secrets=secrets, is_here=True, keep_remote=True
        )
        return self._runs[row.run.path]

    def poll(self, row: PreparedRow) -> RunState:
        if row.run.path in self._never:
            return RunState(aborted=self._never[row.run.path])
        if row.run.path not in self._runs:
            return RunState(aborted=(CANCELLED, "cancelled before it began"))
        return run_state(self._runs[row.run.path])

    def wait(self, seconds: float) -> None:
        if self._manager is None:
            time.sleep(seconds)
        else:
            self._manager.wait(seconds)

    def cancel(self, rows: Iterable[PreparedRow], *, kill: bool) -> None:
        for row in rows:
            if self._manager is not None and row.run.path in self._runs:
                self._manager.cancel(self._runs[row.run.path], KILL if kill else CANCEL)

    def release(self, row: PreparedRow) -> None:
        if local_runs.read_run_status(row.run).kept is not None:
            self._keeps_files = True
        elif row.plan.setup is None:
            shutil.rmtree(row.run.workspace, ignore_errors=True)

    def release_retried(self, row: PreparedRow) -> list[str]:
        assert row.plan.retry is not None
        first, *retries = row.plan.retry.directories
        left = [line for path in (*reversed(retries), first) for line in end_and_clean(path)]
        shutil.rmtree(os.path.join(first, "tmp"), ignore_errors=True)
        batch = Path(first).parent
        others = [RunDir(str(path)) for path in batch.iterdir() if path.name.isdigit() and str(path) != first]
        if not any(local_runs.is_kept(run) for run in others):
            shutil.rmtree(batch / "source", ignore_errors=True)
            if row.plan.setup:
                left += shared_venvs.remove_venv(row.plan.setup)
        return left

    def detach(self) -> None:
        self._keeps_files = True
        if self._manager is not None:
            self._manager.detach()

    def drain_messages(self) -> list[str]:
        return self._manager.connection.drain_messages() if self._manager is not None else []

    def close(self) -> None:
        if self._manager is not None:
            self._manager.close()
        for setup in () if self._keeps_files else self._setups:
            shared_venvs.remove_venv(setup)
        if hasattr(self, "_batch") and not self._keeps_files:  # checkouts borrow its objects
            shutil.rmtree(self._batch.source, ignore_errors=True)
