"""A Slurm cluster as an executor: its login node is used like an SSH host, and Slurm decides where and when a row runs.

The workspace of hosts.yaml lies on the file system that login and compute nodes share: checkouts, logs and what a run
leaves are read there, by the login node, whichever node writes them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.agent.slurm.job_file import REJECTED, SCRIPT
from ci_tasks.config import HostSpec
from ci_tasks.hosts import requirements
from ci_tasks.hosts.executor import Executor
from ci_tasks.hosts.prepared_row import PreparedRow, RunState
from ci_tasks.hosts.remote_run import RemoteRun
from ci_tasks.planning import sbatch
from ci_tasks.planning.placement import HostFacts


class SlurmExecutor(Executor):
    has_scheduler = True

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._reported: set[str] = set()
        self._time_limit: float | None = None  # minutes

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """`gpus` of the result are those of one node: how many nodes have them free is Slurm's business."""
        query = {"partitions": requirements.PARTITIONS_QUERY}
        answer = self.run_queries(query, requirements.QUERY_TIMEOUT_S)["partitions"]
        self._time_limit = requirements.parse_time_limit(answer, self.spec.partition)
        facts = super().facts(gpus=gpus, container=container, simulates=simulates)
        if problem := requirements.partition_problem(answer, self.spec.partition):
            return replace(facts, scheduler_problem=problem)
        if facts.gpus < gpus and not facts.gpu_problem:
            return replace(facts, gpu_problem="no node has more, and a row over several nodes needs --nodes")
        return facts

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        """The batch script lies beside the plan: what is shown is what runs."""
        plan = self._adapted(plan)
        super().write_plan(run, plan)
        resources = replace(sbatch.want(plan, self.spec, plan.nodes), limit=self._time_limit)
        text = sbatch.script(self.spec, resources)
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
