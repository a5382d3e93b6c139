"""A cluster, as its login node shows it: Slurm's programs, the partition, and whether ended jobs are kept."""

from __future__ import annotations

from collections import Counter

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import CheckResult, fault, ok, warning
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers
from ci_tasks.hosts.queries import parse_gres

TOPIC, NODES, ENDED = "Slurm", "GPUs", "accounting"
_VERSION, _PARTITIONS, _SACCT = "sinfo version", "partitions", "sacct"
# Of each group of like nodes: partition, its availability, nodes, their state, their resources, the time limit.
_FORMAT = "%R|%a|%D|%t|%G|%l"
_USABLE = ("idle", "mix", "alloc", "comp")


def facts(host: HostSpec) -> list[HostFact]:
    partitions = {_PARTITIONS: ["sinfo", "--noheader", f"--format={_FORMAT}"]}
    return [
        HostFact({_VERSION: ["sinfo", "--version"]}, _version),
        HostFact(partitions, lambda answers: _partition(host, answers)),
        HostFact({_SACCT: ["sacct", "--noheader", "--allocations", "--starttime=now"]}, _accounting),
    ]


def _version(answers: QueryAnswers) -> list[CheckResult]:
    answer = answers[_VERSION]
    if answer.is_missing:
        step = "load Slurm's module in the login shell's start file, or name a login node as `address`"
        return [fault(TOPIC, "no sinfo on PATH", step)]
    return [ok(TOPIC, answer.last_line)] if answer.code == 0 else [_no_answer(TOPIC, answer)]


def _no_answer(topic: str, answer: QueryAnswer) -> CheckResult:
    return fault(topic, f"sinfo: {answer.last_line}", "run `sinfo` on the login node: rows are blocked without it")


def _partition(host: HostSpec, answers: QueryAnswers) -> list[CheckResult]:
    answer = answers[_PARTITIONS]
    if answer.is_missing:
        return []
    if answer.code != 0:
        return [_no_answer(NODES, answer)]
    groups = [line.split("|") for line in answer.out.splitlines() if line.count("|") == _FORMAT.count("|")]
    mine = [group for group in groups if host.partition in (None, group[0].rstrip("*"))]
    if not mine:
        names = ", ".join(sorted({group[0].rstrip("*") for group in groups})) or "none"
        return [fault(NODES, f"no partition {host.partition}", f"partitions there: {names}")]
    where = f"partition {host.partition}" if host.partition else "the cluster"
    gres = host.gres or "gpu"
    most = parse_gres("\n".join(group[4] for group in mine), gres)
    if not most:
        kinds = ", ".join(sorted({group[4] for group in mine} - {"(null)"})) or "none"
        return [fault(NODES, f"{where} has no {gres}", f"`gres` in hosts.yaml; the nodes have: {kinds}")]
    states: Counter[str] = Counter()
    for _, _, count, state, *_ in mine:
        states[state.rstrip("*~#!%$@^-+")] += int(count) if count.isdigit() else 0
    nodes = ", ".join(f"{count} {state}" for state, count in states.most_common())
    text = f"{where}: up to {most} {gres} a node, nodes: {nodes}, time limit {mine[0][5]}"
    if all(group[1] != "up" for group in mine):
        return [fault(NODES, f"{text}; it is {mine[0][1]}", "ask its administrators, or name another partition")]
    if not any(states[state] for state in _USABLE):
        return [warning(NODES, f"{text}; no node takes jobs now", "rows wait; `sinfo -R` there says why")]
    return [ok(NODES, text)]


def _accounting(answers: QueryAnswers) -> list[CheckResult]:
    answer = answers[_SACCT]
    if answer.code == 0:
        return [ok(ENDED, "sacct answers")]
    text = "no sacct" if answer.is_missing else f"sacct: {answer.last_line}"
    step = "ask for accounting (slurmdbd); without it a job that Slurm has forgotten, and that wrote no end, is `lost`"
    return [warning(ENDED, f"{text}: how a job ended is asked of squeue alone", step)]
