"""What a login node shows of a cluster, and the next step for each fault."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import cluster
from ci_tasks.features.doctor import facts_of_host as facts

ABSENT = Answer(None, "", "sinfo: No such file or directory")
H100 = "h100|up|3|idle|gpu:h100:8(S:0-1)|2-00:00:00\nh100|up|1|down*|gpu:h100:8|2-00:00:00\n"
IDLE = f"{H100}cpu*|up|9|idle|(null)|1:00\n"
HERE = {
    "sinfo version": Answer(0, "slurm-wlm 22.05.8\n"), "partitions": Answer(0, IDLE), "sacct": Answer(0)
}  # fmt: skip
SOME = {"partition": "h100", "gres": "gpu:h100"}
# hosts.yaml's keys, sinfo's lines, status, a part of the text
PARTITIONS: dict[str, tuple[dict[str, str], str, str, str]] = {
    "nodes with GPUs": (SOME, IDLE, "ok", "8 gpu:h100 a node, nodes: 3 idle, 1 down"),
    "any partition": ({}, IDLE, "ok", "the cluster: up to 8 gpu"),
    "a partition that is not there": ({"partition": "a100"}, IDLE, "fault", "no partition a100"),
    "another kind of GPU": ({**SOME, "gres": "gpu:b200"}, IDLE, "fault", "has no gpu:b200"),
    "a partition without GPUs": ({"partition": "cpu"}, IDLE, "fault", "partition cpu has no gpu"),
    "one that is switched off": ({}, IDLE.replace("|up|", "|drain|"), "fault", "it is drain"),
    "no node that takes jobs": ({"partition": "h100"}, "h100|up|4|down|gpu:8|1:00\n", "warning", "no node takes jobs"),
}


def host(**keys: Any) -> HostSpec:
    return HostSpec("c", kind="slurm", address="login", **keys)


@pytest.mark.parametrize(("keys", "output", "status", "text"), PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition(read: Any, keys: dict[str, Any], output: str, status: str, text: str) -> None:
    results = read(cluster.facts(host(runtime="none", **keys)), {**HERE, "partitions": Answer(0, output)})
    [result] = [candidate for candidate in results if candidate.topic == cluster.NODES]
    assert (result.status, text in result.text, bool(result.next_step)) == (status, True, status != "ok")


def test_a_login_node_without_slurm_is_one_fault_and_a_cluster_that_keeps_no_ended_jobs_a_warning(read: Any) -> None:
    absent = read(cluster.facts(host()), dict.fromkeys(HERE, ABSENT))
    assert [(result.topic, result.status) for result in absent if result.status == "fault"] == [("Slurm", "fault")]
    disabled = Answer(1, "", "Slurm accounting storage is disabled")
    results = read(cluster.facts(host()), {**HERE, "sacct": disabled})
    text = f"sacct: {disabled.err}: how a job ended is asked of squeue alone"
    assert [(result.topic, result.text) for result in results if result.status == "warning"] == [("accounting", text)]


def test_a_login_node_is_not_queried_for_gpus_and_containers() -> None:
    first = facts.first_round(host(runtime="docker"), "~/.ci-tasks")
    programs = {word for fact in first for argv in fact.queries.values() for word in argv}
    assert "sinfo" in programs and not programs & {"docker", "nvidia-smi", "dmesg"}
