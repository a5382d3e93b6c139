"""A cluster as a site, as far as it is not a box; tests/integration/test_slurm.py has it on a real Slurm."""

from __future__ import annotations

import queue
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.flows import there
from ci_tasks.flows.cluster import Cluster
from ci_tasks.flows.there import There
from ci_tasks.model import HostSpec
from ci_tasks.plan.capacity import HostFacts

SPEC = HostSpec(name="cluster", kind="slurm", address="login", gpus=8)
LIMIT = "Slurm takes no more just now: QOSMaxSubmitJobPerUserLimit; offered again in 2 s"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Without a link to anywhere."""
    line = SimpleNamespace(said=queue.SimpleQueue())
    monkeypatch.setattr(there, "open_box", lambda spec: SimpleNamespace(line=line))
    return Cluster(SPEC)


def rows(cluster: Cluster, *statuses: dict[str, Any]) -> list[Any]:
    """Rows that were sent, with what the host says of each."""
    found = []
    for number, status in enumerate(statuses):
        errand: Any = SimpleNamespace(
            mirror=SimpleNamespace(status=status), never=None, is_home=False, step="running", remark=""
        )
        cluster._errands[str(number)] = errand
        found.append(SimpleNamespace(run=SimpleNamespace(path=str(number))))
    return found


def test_a_row_has_begun_as_soon_as_slurm_has_it(cluster: Cluster) -> None:
    sent, queued = rows(cluster, {"waiting": ["Slurm: being submitted"]}, {"slurm": {"job": "12_0"}})
    assert [cluster.look(row).begun for row in (sent, queued)] == [False, True]


def test_a_rejection_is_said_once_however_many_rows_it_concerns(cluster: Cluster) -> None:
    rows(cluster, {"waiting": [LIMIT]}, {"waiting": [LIMIT.replace("2 s", "5 s")]}, {"waiting": ["Slurm: PENDING"]})
    said = "cluster: Slurm takes no more just now: QOSMaxSubmitJobPerUserLimit; 2 rows will be offered again, "
    assert cluster.told() == [said + "with growing pauses"]
    assert cluster.told() == []


def test_a_row_wider_than_a_node_is_told_of_nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found = HostFacts(gpus=8)
    monkeypatch.setattr(There, "facts", lambda *args, **more: found)
    assert cluster.facts(gpus=8, container=False, simulates=False) == found
    hint = "no node has more, and a row over several nodes needs --nodes"
    assert cluster.facts(gpus=16, container=False, simulates=False) == replace(found, gpu_problem=hint)
