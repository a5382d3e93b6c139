"""A cluster, as its login node shows it: Slurm's programs, the partition, and whether ended jobs are kept."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import Check, fault, ok, warning
from ci_tasks.hosts.queries import PARTITIONS_QUERY, fact_queries, parse_facts, partition_problem

TOPIC, NODES, ENDED = "Slurm", "GPUs", "accounting"


def slurm(host: HostSpec) -> Check:
    """What `plan` asks the login node, and whether it knows how jobs ended."""
    counted = replace(host, gpus=None)
    answers = yield {
        "sinfo version": ["sinfo", "--version"],
        "partitions": PARTITIONS_QUERY,
        "sacct": ["sacct", "--noheader", "--allocations", "--starttime=now"],
        **fact_queries(counted, gpus=True, container=False),
    }
    version, sacct = answers["sinfo version"], answers["sacct"]
    if version.code != 0:
        step = "load Slurm's module in the login shell's start file, or name a login node as `address`"
        return [fault(TOPIC, "no sinfo on PATH" if version.is_missing else f"sinfo: {version.last_line}", step)]
    facts = parse_facts(counted, answers, simulates=True)
    results = [ok(TOPIC, version.last_line)]
    if problem := partition_problem(answers["partitions"], host.partition) or facts.gpu_problem:
        kinds = ", ".join(sorted({*answers["gpus"].out.split()} - {"(null)"})) or "none"
        results.append(fault(NODES, problem, f"correct `partition` or `gres` in hosts.yaml; its nodes have: {kinds}"))
    else:
        where = f"partition {host.partition}" if host.partition else "the cluster"
        results.append(ok(NODES, f"{where}: up to {facts.gpus} {host.gres or 'gpu'} a node"))
    if sacct.code == 0:
        return [*results, ok(ENDED, "sacct answers")]
    text = "no sacct" if sacct.is_missing else f"sacct: {sacct.last_line}"
    step = "ask for accounting (slurmdbd); without it a job that Slurm has forgotten, and that wrote no end, is `lost`"
    return [*results, warning(ENDED, f"{text}: how a job ended is asked of squeue alone", step)]
