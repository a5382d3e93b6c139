"""A cluster, as its login node shows it: Slurm's programs, the partition, and whether ended jobs are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import Check, CheckResult, fault, ok, warning
from ci_tasks.hosts.queries import PARTITIONS_QUERY, fact_queries, parse_facts, partition_problem

TOPIC, NODES, ENDED = "Slurm", "GPUs", "accounting"
_FORMAT = "%D|%t|%a|%l"  # of each group of like nodes: how many, their state, the partition's, its time limit
_USABLE = ("idle", "mix", "alloc", "comp")


def slurm(host: HostSpec) -> Check:
    """What `plan` asks the login node, its nodes' states, and whether it knows how jobs ended."""
    counted = replace(host, gpus=None)
    nodes = ["sinfo", "--noheader", f"--format={_FORMAT}", *([f"--partition={host.partition}"] * bool(host.partition))]
    answers = yield {
        "sinfo version": ["sinfo", "--version"],
        "partitions": PARTITIONS_QUERY,
        "nodes": nodes,
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
        results.append(_nodes(host, facts.gpus, answers["nodes"].out))
    if sacct.code == 0:
        return [*results, ok(ENDED, "sacct answers")]
    text = "no sacct" if sacct.is_missing else f"sacct: {sacct.last_line}"
    step = "ask for accounting (slurmdbd); without it a job that Slurm has forgotten, and that wrote no end, is `lost`"
    return [*results, warning(ENDED, f"{text}: how a job ended is asked of squeue alone", step)]


def _nodes(host: HostSpec, gpus: int, text: str) -> CheckResult:
    groups = [line.split("|") for line in text.splitlines() if line.count("|") == _FORMAT.count("|")]
    states: Counter[str] = Counter()
    for count, state, *_ in groups:
        states[state.rstrip("*~#!%$@^-+")] += int(count) if count.isdigit() else 0
    nodes = ", ".join(f"{count} {state}" for state, count in states.most_common())
    where = f"partition {host.partition}" if host.partition else "the cluster"
    shown = f"{where}: up to {gpus} {host.gres or 'gpu'} a node, nodes: {nodes}"
    if groups and all(group[2] != "up" for group in groups):
        return fault(NODES, f"{shown}; it is {groups[0][2]}", "ask its administrators, or name another partition")
    if not any(states[state] for state in _USABLE):
        return warning(NODES, f"{shown}; no node takes jobs now", "rows wait; `sinfo -R` there says why")
    return ok(NODES, f"{shown}, time limit {groups[0][3]}")
