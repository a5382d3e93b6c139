"""This machine: run directories are written here and checkouts are clones here; the same agent runs what is in them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.cleanup import end_and_clean, remove_run
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout, Plan, QueryAnswer, Retry
from ci_tasks.agent.run_directory import RunDir, read_status, read_status_if_readable
from ci_tasks.agent.trees.git import StoreError
from ci_tasks.agent.trees.workspace import NotKept
from ci_tasks.checkout.clone import continue_workspace, materialize
from ci_tasks.checkout.repository import BASE, find_commit
from ci_tasks.errors import Blocked
from ci_tasks.given_values import OverlaySource
from ci_tasks.hosts import local_runs, py_spy, python
from ci_tasks.hosts.executor import Executor, HostPaths
from ci_tasks.hosts.host_cache import HostCache
from ci_tasks.hosts.host_snapshot import RemoteSnapshot, take_host_snapshot
from ci_tasks.hosts.install_steps import remove_setup, setup_plan
from ci_tasks.hosts.prepared_row import PreparedRow
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.hosts.remote_host import open_remote_host
from ci_tasks.hosts.remote_run import RemoteRun
from ci_tasks.hosts.run_manager import RemoteRunManager
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
            yield self.read_file(str(file)) or ""


class LocalExecutor(Executor):
    """Nothing is asked of the agent before the first run starts."""

    is_up, _cache, _own_python = True, HostCache(), python.OWN

    def _connect(self) -> None:
        self._cache = HostCache()

    @property
    def _is_open(self) -> bool:
        return "_manager" in self.__dict__

    @cached_property
    def _manager(self) -> RemoteRunManager:
        return open_remote_host(replace(self.spec, workspace=str(store.home())))

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return LocalQueryRunner(self.spec.env).run_queries(queries, timeout)

    def snapshot(
        self, batch: Batch, source: Path, *, rev: str | None, base: str | None, overlays: Sequence[OverlaySource] = ()
    ) -> LocalSnapshot:
        self._batch, code = batch, self._taken
        if not (isinstance(code, LocalSnapshot) and code.directory == batch.source):
            made = materialize(source, batch.source, rev=rev, base=base, overlays=overlays)
            code = LocalSnapshot(made, batch.source, find_commit(batch.source, BASE))
        self._code = code
        return code

    def snapshot_for_retry(self, batch: Batch, source: Path) -> RemoteSnapshot:
        snapshot = take_host_snapshot(source, None, None)
        self._batch, self._code = batch, RemoteSnapshot(snapshot.checkout, snapshot)
        return self._code

    def paths(self, run: RunDir) -> HostPaths:
        locks = store.lock_dir() / self.spec.name
        return HostPaths(run.path, str(self._batch.environments), str(store.environments()), str(locks))

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        local_runs.write_run_dir(run, plan)

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        for row in rows:
            if row.setup is None:
                self._check_out(row.plan)
            elif not os.path.exists(row.setup.workspace):
                plan = setup_plan(row.setup, self.spec)
                self.write_plan(RunDir(row.setup.directory), plan)
                self._check_out(plan)

    def _check_out(self, plan: Plan) -> None:
        assert isinstance(self._code, LocalSnapshot)
        self._code.check_out(plan.workspace)

    def _remote_run(self, run: RunDir, plan: Plan, directory: str) -> RemoteRun:
        remote_run = super()._remote_run(run, plan, directory)
        remote_run.is_here = remote_run.keep_remote = True
        return remote_run

    def _prepare(self, remote_run: RemoteRun, has_checkout: bool) -> None:
        run, plan = remote_run.run, remote_run.plan
        if run.path in self._setups and os.path.lexists(run.status):  # of the command that this one resumes
            if read_status(run).exit_code == 0 and os.path.exists(f"{run.path}/venv"):
                return
            remove_run(run.path)
        if not os.path.exists(run.plan):
            self.write_plan(run, plan)
        if plan.retry:
            self._update_kept(run, plan, plan.retry)
        elif has_checkout:
            self._check_out(plan)
        py_spy.keep_here(store.home())

    def _update_kept(self, run: RunDir, plan: Plan, retry: Retry) -> None:
        assert isinstance(self._code, RemoteSnapshot)
        try:
            continue_workspace(self._code.snapshot, plan.workspace, retry, run.path)
        except NotKept as reason:
            raise Blocked(f"the run cannot be retried: {reason}; run its row again") from None
        except StoreError as error:
            raise Blocked(str(error)) from None

    def wait(self, seconds: float) -> None:
        super().wait(seconds) if self._is_open else time.sleep(seconds)

    def drain_messages(self) -> list[str]:
        return super().drain_messages() if self._is_open else []

    def release(self, row: PreparedRow) -> None:
        super().release(row)
        if row.plan.setup is None and not read_status(row.run).kept:
            shutil.rmtree(row.run.workspace, ignore_errors=True)

    def release_retried(self, row: PreparedRow) -> list[str]:
        assert row.plan.retry is not None
        first, *retries = row.plan.retry.directories
        left = [line for path in (*reversed(retries), first) for line in end_and_clean(path)]
        shutil.rmtree(os.path.join(first, "tmp"), ignore_errors=True)
        batch = Path(first).parent
        others = [RunDir(str(path)) for path in batch.iterdir() if path.name.isdigit() and str(path) != first]
        if not any(read_status_if_readable(run).kept is not None for run in others):
            shutil.rmtree(batch / "source", ignore_errors=True)
            left += remove_setup(row.plan.setup) if row.plan.setup else []
        return left

    def close(self) -> None:
        if self._is_open:
            self._manager.close()
        if not self._keeps_setups:
            for path in self._setups:
                remove_setup(path)
            if hasattr(self, "_batch"):  # checkouts borrow its objects
                shutil.rmtree(self._batch.source, ignore_errors=True)
