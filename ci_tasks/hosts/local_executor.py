"""This machine as a host: the same agent, asked in the same words. Run directories are the agent's own, so nothing is
fetched; and questions need no agent."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.cleanup import end_and_clean, remove_run
from ci_tasks.agent.records import Plan, QueryAnswer
from ci_tasks.agent.run_directory import RunDir, read_status, read_status_if_readable
from ci_tasks.agent.trees.workspace import forget
from ci_tasks.hosts import local_runs, py_spy, python
from ci_tasks.hosts.executor import Executor, HostPaths
from ci_tasks.hosts.host_cache import HostCache
from ci_tasks.hosts.install_steps import remove_setup, setup_plan
from ci_tasks.hosts.prepared_row import PreparedRow
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.hosts.remote_host import open_remote_host
from ci_tasks.hosts.remote_run import RemoteRun
from ci_tasks.hosts.run_manager import RemoteRunManager
from ci_tasks.results import store


class LocalExecutor(Executor):
    """The agent is started with the first run."""

    is_up, _cache, _own_python = True, HostCache(), python.OWN

    def _connect(self) -> None:
        self._cache = HostCache()

    @cached_property
    def _manager(self) -> RemoteRunManager:
        manager = open_remote_host(self.spec)
        manager.set_code_pack(self._pack)
        return manager

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return LocalQueryRunner(self.spec.env).run_queries(queries, timeout)

    def paths(self, run: RunDir) -> HostPaths:
        locks = store.lock_dir() / self.spec.name
        return HostPaths(run.path, str(self._batch.environments), str(store.environments()), str(locks))

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        for row in rows:
            self._make(row.run, row.plan, row.has_own_checkout)
            if row.setup and not os.path.exists(row.setup.workspace):
                self._make(RunDir(row.setup.directory), setup_plan(row.setup, self.spec), True)

    def _make(self, run: RunDir, plan: Plan, has_checkout: bool) -> None:
        from ci_tasks.checkout.delivery import clone  # the agent makes those of runs

        local_runs.write_run_dir(run, plan)
        if has_checkout:
            clone(self._code, Path(plan.workspace))

    def _remote_run(self, run: RunDir, plan: Plan, directory: str) -> RemoteRun:
        remote_run = super()._remote_run(run, plan, directory)
        remote_run.is_here = remote_run.keep_remote = True
        return remote_run

    def _prepare(self, remote_run: RemoteRun, has_checkout: bool) -> None:
        run = remote_run.run
        is_done = read_status(run).exit_code == 0 and os.path.exists(f"{run.path}/venv")
        if run.path in self._setups and os.path.lexists(run.status) and not is_done:
            remove_run(run.path)  # install steps of the command that this one resumes
        super()._prepare(remote_run, has_checkout)
        py_spy.keep_here(store.home())

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
        forget(RunDir(first).workspace)
        shutil.rmtree(os.path.join(first, "tmp"), ignore_errors=True)
        others = [RunDir(str(path)) for path in Path(first).parent.iterdir() if path.name.isdigit()]
        is_shared = any(read_status_if_readable(run).kept for run in others if run.path != first)
        return left + (remove_setup(row.plan.setup) if row.plan.setup and not is_shared else [])

    def close(self) -> None:
        setups, self._setups = self._setups, {}  # their logs and plans stay
        if self._is_open:
            super().close()
        for path in () if self._keeps_setups else setups:
            remove_setup(path)
