"""A cluster as a site, as far as it is not a box; tests/integration/test_slurm.py has it on a real Slurm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.records import Plan, QueryAnswer, SlurmAllocation, Status
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.config import HostSpec
from ci_tasks.hosts import executor
from ci_tasks.hosts.executor import Executor
from ci_tasks.hosts.slurm_executor import SlurmExecutor
from ci_tasks.planning.placement import HostFacts

SPEC = HostSpec(name="cluster", kind="slurm", address="login", gpus=8)
LIMIT = "Slurm accepts no more jobs now: QOSMaxSubmitJobPerUserLimit; next try in 2 s"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SlurmExecutor:
    """Without a link to anywhere."""
    answers = {"partitions": QueryAnswer(0, "main*|20:00\n")}
    line = SimpleNamespace(drain_messages=list, run_queries=lambda queries, timeout: answers)
    monkeypatch.setattr(executor, "open_remote_host", lambda spec: SimpleNamespace(connection=line))
    return SlurmExecutor(SPEC)


def rows(cluster: SlurmExecutor, *statuses: Status) -> list[Any]:
    """Rows that were sent, with what the host says of each."""
    prepared = []
    for number, status in enumerate(statuses):
        remote_run: Any = SimpleNamespace(
            mirror=SimpleNamespace(status=status), aborted=None, is_fetched=False, phase="running", warning=""
        )
        cluster._runs[str(number)] = remote_run
        prepared.append(SimpleNamespace(run=SimpleNamespace(path=str(number))))
    return prepared


def test_a_row_has_begun_as_soon_as_slurm_has_it(cluster: SlurmExecutor) -> None:
    sent, queued = rows(cluster, Status(waiting=("Slurm: being submitted",)), Status(slurm=SlurmAllocation("12")))
    assert [cluster.poll(row).has_started for row in (sent, queued)] == [False, True]


def test_a_rejection_is_said_once_however_many_rows_it_concerns(cluster: SlurmExecutor) -> None:
    waiting = (LIMIT, LIMIT.replace("2 s", "5 s"), "Slurm: PENDING")
    rows(cluster, *(Status(waiting=(why,)) for why in waiting))
    message = "cluster: Slurm accepts no more jobs now: QOSMaxSubmitJobPerUserLimit; 2 rows will be offered again, "
    assert cluster.drain_messages() == [message + "with growing pauses"]
    assert cluster.drain_messages() == []


def test_a_partitions_time_limit_counts_in_the_plan_and_in_the_request_to_slurm(
    cluster: SlurmExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Executor, "facts", lambda *args, **more: HostFacts(gpus=8))
    cluster.facts(gpus=0, container=False, simulates=False)
    run = RunDir(str(tmp_path))
    cluster.write_plan(run, Plan(timeout_minutes=30))
    assert read_plan(run).timeout_minutes == 15
    assert "#SBATCH --time=20" in (tmp_path / "batch.sh").read_text().splitlines()


def test_a_row_wider_than_a_node_is_told_of_nodes(cluster: SlurmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = HostFacts(gpus=8)
    monkeypatch.setattr(Executor, "facts", lambda *args, **more: facts)
    assert cluster.facts(gpus=8, container=False, simulates=False) == facts
    hint = "no node has more, and a row over several nodes needs --nodes"
    assert cluster.facts(gpus=16, container=False, simulates=False) == replace(facts, gpu_problem=hint)
