"""Whether a host has what rows need: questions put to its programs, and pure parsers of their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ci_tasks.agent.gpus import nvidia_smi
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.planning.capacity import HostFacts

QUERY_TIMEOUT_S = 20.0  # seconds; a hung driver or daemon must not hang the question
# Whether a runtime works: the question whose good answer says so. srun is where pyxis would be.
_WORKS = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "version", "--format", "{{.Server.Version}}"),
    "apptainer": ("apptainer", "--version"),
    "pyxis": ("srun", "--help"),
}
_PYXIS = "--container-image"


def facts(host: HostSpec, *, gpus: bool, container: bool, simulates: bool) -> HostFacts:
    """What this machine offers as `host`; asks only for what is wanted, since a cold driver takes seconds to answer."""
    answers = LocalQueryRunner(host.env).run_queries(programs(host, gpus=gpus, container=container), QUERY_TIMEOUT_S)
    return parse_facts(host, answers, simulates=simulates)


def programs(host: HostSpec, *, gpus: bool, container: bool) -> dict[str, list[str]]:
    """What to ask of `host`."""
    queries = {}
    if gpus and host.gpus is None:
        queries["gpus"] = _sinfo(host) if host.kind == "slurm" else nvidia_smi.QUERY_GPUS
    # Of a cluster it is the login node that answers: pyxis shows there, while docker may be on the other nodes only.
    if container and host.runtime in _WORKS and (host.kind != "slurm" or host.runtime == "pyxis"):
        queries["container"] = [*_WORKS[host.runtime]]
    return queries


def parse_facts(host: HostSpec, answers: Mapping[str, QueryAnswer], *, simulates: bool) -> HostFacts:
    """The facts that the answers hold."""
    count = _gpus_of_a_node if host.kind == "slurm" else _gpus
    gpus, problem = (host.gpus, "") if host.gpus is not None else count(host, answers.get("gpus"))
    return HostFacts(
        gpus=gpus,
        gpu_problem=problem,
        container_problem=_container_problem(host.runtime, answers.get("container")),
        simulates=simulates,
    )


def parse_gres(text: str, name: str = "gpu") -> int:
    """The most GPUs that one node has, in the output of `sinfo --format=%G` (a line `gpu:h100:8(S:0-1),gpu:a100:2` for
    each kind of node). `name` is the resource with its type, or without one, which then counts all its types."""
    most = 0
    for line in text.splitlines():
        here = 0
        for item in re.sub(r"\([^()]*\)", "", line).split(","):
            which, _, count = item.strip().rpartition(":")
            if re.fullmatch(r"[0-9]{1,6}", count) and f"{which}:".startswith(f"{name}:"):
                here += int(count)
        most = max(most, here)
    return most


# A line `PARTITION|LIMIT` for each partition; the default one's name ends in `*`.
PARTITIONS_QUERY = ["sinfo", "--noheader", "--format=%P|%l"]


def partition_problem(answer: QueryAnswer, partition: str | None) -> str:
    """Why Slurm would take no job there; empty when it would."""
    if answer.code != 0:
        return "no sinfo on PATH" if answer.is_missing else f"sinfo: {answer.last_line}"
    names = sorted({line.partition("|")[0].rstrip("*") for line in answer.out.split()})
    # sbatch takes several names, separated by commas.
    unknown = [name for name in (partition or "").split(",") if name and name not in names]
    return f"no partition {unknown[0]}; partitions: {', '.join(names) or 'none'}" if unknown else ""


def parse_time_limit(answer: QueryAnswer, partition: str | None = None) -> float | None:
    """The longest that a job may run, in minutes; None where there is no limit, or Slurm does not say. Limits are
    `infinite`, `30:00`, `1:00:00` or `2-00:00:00`."""
    lines = [line.strip().partition("|") for line in answer.out.splitlines()] if answer.code == 0 else []
    lines = [line for line in lines if partition is None or line[0].rstrip("*") == partition]
    limits = [limit for name, _, limit in lines if name.endswith("*") or len({line[0] for line in lines}) == 1]
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limits[0]) if limits else None
    if found is None:
        return None
    days, hours, minutes, seconds = (int(digits or 0) for digits in found.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def _sinfo(host: HostSpec) -> list[str]:
    return ["sinfo", "--noheader", "--format=%G", *([f"--partition={host.partition}"] if host.partition else [])]


def _gpus_of_a_node(host: HostSpec, answer: QueryAnswer | None) -> tuple[int, str]:
    if answer is None:
        return 0, ""
    if answer.is_missing:
        return 0, "no sinfo on PATH"
    count = parse_gres(answer.out, host.gres or "gpu") if answer.code == 0 else 0
    where = f"partition {host.partition}" if host.partition else "the cluster"
    return count, "" if count else f"{where} has no {host.gres or 'gpu'}" if answer.code == 0 else answer.last_line


def _gpus(_: HostSpec, answer: QueryAnswer | None) -> tuple[int, str]:
    if answer is None:
        return 0, ""
    if answer.is_missing:
        return 0, "no nvidia-smi on PATH"
    count = len(nvidia_smi.parse_gpus(answer.out)) if answer.code == 0 else 0
    return count, "" if count else answer.last_line


def _container_problem(runtime: str, answer: QueryAnswer | None) -> str:
    """Why `runtime` cannot start a container; empty when it can, or when nobody asked."""
    if answer is None:
        return ""
    if answer.code == 0:
        return "pyxis (srun has no --container-image)" if runtime == "pyxis" and _PYXIS not in answer.out else ""
    if answer.is_missing and "No such file" in answer.err:
        return f"{runtime} (no srun on PATH)" if runtime == "pyxis" else f"{runtime} (not on PATH)"
    return f"{runtime} ({answer.last_line})"
