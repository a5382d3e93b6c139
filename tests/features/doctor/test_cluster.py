"""What a login node shows of a cluster, and the next step for each fault."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import FAULT
from ci_tasks.features.doctor.cluster import NODES, slurm
from ci_tasks.features.doctor.examine import examine_host

ABSENT = Answer(None, "", "sinfo: No such file or directory")
GRES = "gpu:h100:8(S:0-1)\n(null)\n"
HERE = {
    "sinfo version": Answer(0, "slurm-wlm 22.05.8\n"), "partitions": Answer(0, "h100|2-00:00:00\ncpu*|1:00\n"),
    "sacct": Answer(0),
}  # fmt: skip
SOME = {"partition": "h100", "gres": "gpu:h100"}
# hosts.yaml's keys, the nodes' resources, status, a part of the text
PARTITIONS: dict[str, tuple[dict[str, str], str, str, str]] = {
    "nodes with GPUs": (SOME, GRES, "ok", "partition h100: up to 8 gpu:h100 a node"),
    "any partition": ({}, GRES, "ok", "the cluster: up to 8 gpu"),
    "a partition that is not there": ({"partition": "a100"}, "", "fault", "no partition a100"),
    "another kind of GPU": ({**SOME, "gres": "gpu:b200"}, GRES, "fault", "has no gpu:b200"),
    "a partition without GPUs": ({"partition": "cpu"}, "(null)", "fault", "partition cpu has no gpu"),
}


def host(**keys: Any) -> HostSpec:
    return HostSpec("c", kind="slurm", address="login", **keys)


@pytest.mark.parametrize(("keys", "gres", "status", "text"), PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition(read: Any, keys: dict[str, Any], gres: str, status: str, text: str) -> None:
    answers = {**HERE, "gpus": Answer(0, gres)}
    [result] = [result for result in read(slurm(host(**keys)), answers) if result.topic == NODES]
    assert (result.status, text in result.text, bool(result.next_step)) == (status, True, status != "ok"), result


def test_a_login_node_without_slurm_is_one_fault_and_a_cluster_that_keeps_no_ended_jobs_a_warning(read: Any) -> None:
    absent = read(slurm(host()), dict.fromkeys(HERE, ABSENT))
    assert [(result.topic, result.status) for result in absent] == [("Slurm", FAULT)]
    disabled = Answer(1, "", "Slurm accounting storage is disabled")
    answers = {**HERE, "gpus": Answer(0, GRES), "sacct": disabled}
    results = [result for result in read(slurm(host()), answers) if result.status == "warning"]
    text = f"sacct: {disabled.err}: how a job ended is asked of squeue alone"
    assert [(result.topic, result.text) for result in results] == [("accounting", text)]


def test_a_login_node_is_not_queried_for_gpus_and_containers() -> None:
    asked: list[str] = []

    class Recorder:
        def run_queries(self, queries: Any, timeout: float) -> dict[str, Answer]:
            asked.extend(word for argv in queries.values() for word in argv)
            return dict.fromkeys(queries, ABSENT)

    examine_host(host(runtime="docker"), ["image"], lambda _: nullcontext(Recorder()))
    assert "sinfo" in asked and not {*asked} & {"docker", "nvidia-smi", "dmesg"}
