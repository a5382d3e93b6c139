"""What a login node shows of a cluster, and the next step for each fault."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import cluster
from ci_tasks.features.doctor import facts_of_host as facts

ABSENT = QueryAnswer(None, "", "sinfo: No such file or directory")
HERE = QueryAnswer(0, "slurm-wlm 22.05.8\n")
IDLE = (
    "h100|up|3|idle|gpu:h100:8(S:0-1)|2-00:00:00\nh100|up|1|down*|gpu:h100:8|2-00:00:00\ncpu*|up|9|idle|(null)|1:00\n"
)
NOT_KEPT = QueryAnswer(1, "", "Slurm accounting storage is disabled")

# hosts.yaml's keys, sinfo's lines, status, a part of the text
PARTITIONS = {
    "nodes with GPUs": (
        {"partition": "h100", "gres": "gpu:h100"},
        IDLE,
        "ok",
        "8 gpu:h100 a node, nodes: 3 idle, 1 down",
    ),
    "any partition": ({}, IDLE, "ok", "the cluster: up to 8 gpu"),
    "a partition that is not there": ({"partition": "a100"}, IDLE, "fault", "no partition a100"),
    "another kind of GPU": ({"partition": "h100", "gres": "gpu:b200"}, IDLE, "fault", "has no gpu:b200"),
    "a partition without GPUs": ({"partition": "cpu"}, IDLE, "fault", "partition cpu has no gpu"),
    "one that is switched off": ({}, IDLE.replace("|up|", "|drain|"), "fault", "it is drain"),
    "no node that takes jobs": ({"partition": "h100"}, "h100|up|4|down|gpu:8|1:00\n", "warning", "no node takes jobs"),
}


@pytest.mark.parametrize(("keys", "output", "status", "text"), PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition(read: Any, keys: dict[str, Any], output: str, status: str, text: str) -> None:
    host = HostSpec("c", kind="slurm", address="login", runtime="none", **keys)
    answers = {"sinfo version": HERE, "partitions": QueryAnswer(0, output), "sacct": QueryAnswer(0)}
    [result] = [candidate for candidate in read(cluster.facts(host), answers) if candidate.topic == cluster.NODES]
    assert result.status == status
    assert text in result.text
    assert bool(result.next_step) is (status != "ok")


def test_a_login_node_without_slurm_is_one_fault(read: Any) -> None:
    answers = dict.fromkeys(("sinfo version", "partitions", "sacct"), ABSENT)
    results = read(cluster.facts(HostSpec("c", kind="slurm", address="login")), answers)
    assert [(result.topic, result.status) for result in results if result.status == "fault"] == [("Slurm", "fault")]


def test_a_sinfo_that_fails_is_a_fault(read: Any) -> None:
    silent = QueryAnswer(1, "", "sinfo: error: Unable to contact slurm controller")
    answers = {"sinfo version": HERE, "partitions": silent, "sacct": QueryAnswer(0)}
    results = read(cluster.facts(HostSpec("c", kind="slurm", address="login")), answers)
    assert [(result.topic, silent.err in result.text) for result in results if result.status == "fault"] == [
        (cluster.NODES, True)
    ]


def test_a_cluster_that_keeps_no_ended_jobs_is_a_warning(read: Any) -> None:
    answers = {"sinfo version": HERE, "partitions": QueryAnswer(0, IDLE), "sacct": NOT_KEPT}
    results = read(cluster.facts(HostSpec("c", kind="slurm", address="login")), answers)
    assert [(result.topic, result.text) for result in results if result.status == "warning"] == [
        (
            "accounting",
            "sacct: Slurm accounting storage is disabled: how a job ended is asked of squeue alone",
        )
    ]


def test_a_login_node_is_not_queried_for_gpus_and_containers() -> None:
    host = HostSpec("c", kind="slurm", address="login", runtime="docker")
    programs = {
        word for fact in facts.first_round(host, "~/.ci-tasks") for argv in fact.queries.values() for word in argv
    }
    assert "sinfo" in programs
    assert not programs & {"docker", "nvidia-smi", "dmesg"}
