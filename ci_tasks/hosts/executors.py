"""What this machine and a Slurm cluster do otherwise than a host over SSH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ci_tasks.agent import archive, liveness
from ci_tasks.agent.__main__ import create
from ci_tasks.agent.cleanup import end_and_clean, remove_run
from ci_tasks.agent.records import Plan, QueryAnswer
from ci_tasks.agent.run_directory import RunDir, read_status, read_status_if_readable
from ci_tasks.agent.slurm.job_file import REJECTED, SCRIPT
from ci_tasks.agent.trees.workspace import forget
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.hosts import queries
from ci_tasks.hosts.connection import HostCache
from ci_tasks.hosts.executor import Executor, HostPaths, PreparedRow
from ci_tasks.hosts.provision import remove_setup
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.hosts.remote_run import RemoteRun, RunState
from ci_tasks.hosts.run_manager import RemoteRunManager, open_remote_host
from ci_tasks.planning import sbatch
from ci_tasks.planning.placement import HostFacts
from ci_tasks.results import store


class LocalExecutor(Executor):
    """The agent is started with the first run."""

    is_up, _cache, _own_python = True, HostCache(), queries.OWN

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
            if row.setup and row.plan.setup and not os.path.exists(row.setup.workspace):
                self._make(RunDir(row.plan.setup), row.setup, True)

    def _make(self, run: RunDir, plan: Plan, has_checkout: bool) -> None:
        from ci_tasks.checkout.delivery import clone  # the agent makes those of runs

        write_run_dir(run, plan)
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


class SlurmExecutor(Executor):
    has_scheduler = True

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._reported: set[str] = set()
        self._time_limit: float | None = None  # minutes

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """`gpus` of the result are those of one node: how many nodes have them free is Slurm's business."""
        query = {"partitions": queries.PARTITIONS_QUERY}
        answer = self.run_queries(query, queries.QUERY_TIMEOUT_S)["partitions"]
        self._time_limit = queries.parse_time_limit(answer, self.spec.partition)
        facts = super().facts(gpus=gpus, container=container, simulates=simulates)
        if problem := queries.partition_problem(answer, self.spec.partition):
            return replace(facts, scheduler_problem=problem)
        if facts.gpus < gpus and not facts.gpu_problem:
            return replace(facts, gpu_problem="no node has more")
        return facts

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        """The batch script lies beside the plan: what is shown is what runs."""
        plan = self._adapted(plan)
        super().write_plan(run, plan)
        text = sbatch.script(plan, self.spec, self._time_limit)
        Path(run.path, SCRIPT).write_text(text, encoding="utf-8", newline="\n")

    def _adapted(self, plan: Plan) -> Plan:
        return sbatch.within_limit(sbatch.on_slurm(plan), self._time_limit, self.spec)

    def _remote_run(self, run: RunDir, plan: Plan, directory: str) -> RemoteRun:
        return super()._remote_run(run, self._adapted(plan), directory)

    def _prepare(self, remote_run: RemoteRun, has_checkout: bool) -> None:
        super()._prepare(remote_run, has_checkout)
        remote_run.sbatch_script = Path(remote_run.run.path, SCRIPT).read_text(encoding="utf-8")

    def poll(self, row: PreparedRow) -> RunState:
        """A row has started as soon as Slurm has it: from then on it goes on without us."""
        state, remote_run = super().poll(row), self._runs.get(row.run.path)
        has = remote_run is not None and remote_run.mirror is not None and remote_run.mirror.status.slurm is not None
        return state if state.is_over or has else replace(state, has_started=False)

    def drain_messages(self) -> list[str]:
        """What the link says, and once for each reason that rows could not be submitted yet."""
        lines, mirrors = super().drain_messages(), [remote_run.mirror for remote_run in self._runs.values()]
        waiting = [text for mirror in mirrors if mirror for text in mirror.status.waiting]
        reasons = Counter(text.rpartition(";")[0] for text in waiting if text.startswith(REJECTED))
        for why in set(reasons) - self._reported:
            many = f"{reasons[why]} row{'' if reasons[why] == 1 else 's'}"
            lines.append(f"{self.spec.name}: {why}; {many} will be offered again, with growing pauses")
        self._reported |= set(reasons)
        return lines


_POLL_INTERVAL_S = 0.02


def write_run_dir(run: RunDir, plan: Plan) -> None:
    """Everything that the agent needs, in one directory that can also be copied elsewhere."""
    create(run, plan, archive.for_this_machine())


def start(run: RunDir) -> None:
    """Start the run in a process of its own that outlives this one. Raises Blocked if the agent does not start."""
    done = _call_agent(run, "start")
    if done.returncode:
        said = done.stderr.strip() or "it said nothing"
        raise Blocked(f"the agent did not start: {said.splitlines()[-1]}")


def complete(run: RunDir) -> int | None:
    """Start the run, whose plan has it end without a client, and wait for its end. Returns its exit code; ^C ends the
    run before it is raised."""
    client = liveness.client_lock(run.path)
    try:
        start(run)
        while not has_ended(run):
            time.sleep(_POLL_INTERVAL_S)
    except KeyboardInterrupt:
        client.close()
        cancel(run)
        while not has_ended(run):
            time.sleep(_POLL_INTERVAL_S)
        raise
    finally:
        client.close()
    return read_status(run).exit_code


def has_ended(run: RunDir) -> bool:
    """Whether the run is over: its agent has ended."""
    return not liveness.is_held(run.path) and not liveness.is_alive(run, read_status_if_readable(run))


def cancel(run: RunDir) -> None:
    """Ask the run to end; also ends what an agent that died has left."""
    _call_agent(run, "cancel")


def _call_agent(run: RunDir, verb: str) -> subprocess.CompletedProcess[str]:
    # -I: the caller's PYTHONPATH and user packages must not reach into the agent.
    words, null, pipe = [sys.executable, "-I", "-S", run.agent, verb, run.path], subprocess.DEVNULL, subprocess.PIPE
    return subprocess.run(words, stdin=null, stdout=null, stderr=pipe, errors="replace", start_new_session=True)


def open_executor(spec: HostSpec) -> Executor:
    if spec.kind == "local":
        return LocalExecutor(spec)
    if spec.kind == "slurm":
        return SlurmExecutor(spec)
    return Executor(spec)
