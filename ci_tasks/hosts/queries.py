"""Facts of a host: questions put to its programs, all at once, and pure parsers of their answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ci_tasks.agent import nvidia_smi
from ci_tasks.agent.codec import RecordError, parse
from ci_tasks.agent.records import PATTERN, QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.planning.actions import version_matches
from ci_tasks.planning.placement import HostFacts


class QueryRunner(Protocol):
    """A host that can be asked, in the environment that its jobs get. The questions run at the same time, so that a
    program that hangs delays no other."""

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """The answer to each argv, by the question's name."""
        ...


def python_query(script: str, *args: str) -> list[str]:
    """A question that no program of the host answers in a form worth parsing. -I: the caller's PYTHONPATH stays out."""
    return ["python3", "-I", "-c", script, *args]


def parse_json_object(answer: QueryAnswer) -> dict[str, Any]:
    """The first JSON object that a program printed; empty if it printed none."""
    try:
        value = parse(answer.out, where="answer")
    except RecordError:
        return {}
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def list_value(mapping: Mapping[str, Any], name: str) -> list[Any]:
    value = mapping.get(name)
    return value if isinstance(value, list) else []


QUERY_TIMEOUT_S = 20.0  # seconds; a hung driver or daemon must not hang the question
# Whether a runtime works: the question whose good answer says so. srun is where pyxis would be.
_WORKS = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "version", "--format", "{{.Server.Version}}"),
    "apptainer": ("apptainer", "--version"),
    "pyxis": ("srun", "--help"),
}
_PYXIS = "--container-image"


def fact_queries(host: HostSpec, *, gpus: bool, container: bool) -> dict[str, list[str]]:
    """What to ask of `host`; nothing that is not wanted, since a cold driver takes seconds to answer."""
    queries = {}
    if gpus and host.gpus is None:
        sinfo = ["sinfo", "--noheader", "--format=%G", *([f"--partition={host.partition}"] if host.partition else [])]
        queries["gpus"] = sinfo if host.kind == "slurm" else nvidia_smi.QUERY_GPUS
    # Of a cluster it is the login node that answers: pyxis shows there, while docker may be on the other nodes only.
    if container and host.runtime in _WORKS and (host.kind != "slurm" or host.runtime == "pyxis"):
        queries["container"] = [*_WORKS[host.runtime]]
    return queries


def parse_facts(host: HostSpec, answers: Mapping[str, QueryAnswer], *, simulates: bool) -> HostFacts:
    """The facts that the answers hold."""
    gpus, problem = _count_gpus(host, answers.get("gpus"))
    return HostFacts(gpus, problem, _container_problem(host.runtime, answers.get("container")), simulates)


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
    """The longest that a job may run, in minutes; None if there is no limit, or Slurm does not say. Limits are
    `infinite`, `30:00`, `1:00:00` or `2-00:00:00`."""
    lines = [line.strip().partition("|") for line in answer.out.splitlines()] if answer.code == 0 else []
    lines = [line for line in lines if partition is None or line[0].rstrip("*") == partition]
    limits = [limit for name, _, limit in lines if name.endswith("*") or len({line[0] for line in lines}) == 1]
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limits[0]) if limits else None
    if found is None:
        return None
    days, hours, minutes, seconds = (int(digits or 0) for digits in found.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def _count_gpus(host: HostSpec, answer: QueryAnswer | None) -> tuple[int, str]:
    """How many GPUs a node has, or why none is known."""
    if host.gpus is not None or answer is None:
        return host.gpus or 0, ""
    is_cluster = host.kind == "slurm"
    if answer.is_missing or answer.code != 0:
        missing = f"no {'sinfo' if is_cluster else 'nvidia-smi'} on PATH"
        return 0, missing if answer.is_missing else answer.last_line
    if not is_cluster:
        count = len(nvidia_smi.parse_gpus(answer.out))
        return count, "" if count else answer.last_line
    count = parse_gres(answer.out, host.gres or "gpu")
    where = f"partition {host.partition}" if host.partition else "the cluster"
    return count, "" if count else f"{where} has no {host.gres or 'gpu'}"


def _container_problem(runtime: str, answer: QueryAnswer | None) -> str:
    """Why `runtime` cannot start a container; empty when it can, or when it was not asked for."""
    if answer is None:
        return ""
    if answer.code == 0:
        return "pyxis (srun has no --container-image)" if runtime == "pyxis" and _PYXIS not in answer.out else ""
    if answer.is_missing and "No such file" in answer.err:
        return f"{runtime} (no srun on PATH)" if runtime == "pyxis" else f"{runtime} (not on PATH)"
    return f"{runtime} ({answer.last_line})"


def locked_gpus(host: QueryRunner, spec: HostSpec) -> frozenset[int]:
    """The GPUs that a process has locked on the host, our own rows included: a hint for the placement, since the locks
    on the host decide. Simulated GPUs are not asked about."""
    answers = {} if spec.simulate else host.run_queries({LOCKS_QUERY_NAME: LOCKS_QUERY}, QUERY_TIMEOUT_S)
    return frozenset(lock_holders(answers) if LOCKS_QUERY_NAME in answers else ())


# Looks only: taking a lock for a moment to see whether it is free would make a contender believe that it is not.
_LOCKS_SCRIPT = """
import json, os, re, sys
directory, pattern = os.path.split(sys.argv[1])
files = []
for name in sorted(os.listdir(directory)):
    found = re.match(pattern.replace("{gpu_id}", "([0-9]+)") + "$", name)
    if found:
        at = os.stat(os.path.join(directory, name))
        file = [os.major(at.st_dev), os.minor(at.st_dev), at.st_ino]
        files.append({"gpu": int(found.group(1)), "file": file})
print(json.dumps({"files": files, "locks": open("/proc/locks").read()}))
"""
LOCKS_QUERY_NAME = "gpu locks"
LOCKS_QUERY: Sequence[str] = python_query(_LOCKS_SCRIPT, PATTERN)


def lock_holders(answers: Mapping[str, QueryAnswer]) -> dict[int, list[int]]:
    """GPU id → the pids that hold its lock."""
    response = parse_json_object(answers[LOCKS_QUERY_NAME])
    from ci_tasks.agent.gpu_locks import parse_locks  # few commands ask

    held = parse_locks(str(response.get("locks", "")))
    holders: dict[int, list[int]] = {}
    for file in list_value(response, "files"):
        pids = [pid for at, pid in held.items() if isinstance(file, dict) and [*at] == file.get("file")]
        if pids and type(file.get("gpu")) is int:
            holders[file["gpu"]] = pids
    return dict(sorted(holders.items()))


OWN = sys.executable, sys.version.split()[0]
# By name, and where version managers keep interpreters that are not on PATH. -I: `import platform` must not load the
# platform.py of a checkout in which we are.
_PYTHONS_SCRIPT = """for name in python3 python$1 "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python \
    "$HOME/.local/share/uv/python/cpython-$1".*/bin/python$1 /opt/hostedtoolcache/Python/$1.*/x64/bin/python; do
  path=$(command -v "$name") || continue
  found=$("$path" -I -c 'import platform, sys; print(platform.python_version(), sys.executable)' 2> /dev/null) &&
    echo "$found"
done
exit 0"""


def find_python(version_spec: str, host: QueryRunner, own: tuple[str, str] = OWN) -> tuple[str, str]:
    """(path, version) of the host's newest Python that is `version_spec`, such as `3.10` or `3.10.14`; else its `own`.

    The caller compares versions; another one than wanted is a deviation, not an error.
    """
    if not version_spec or version_matches(version_spec, own[1]):
        return own
    minor = re.match(r"\d+\.\d+", version_spec)
    command = ["/bin/sh", "-c", _PYTHONS_SCRIPT, "sh", minor[0] if minor else ""]
    answer = host.run_queries({"python": command}, QUERY_TIMEOUT_S)["python"]
    lines = [line.partition(" ") for line in answer.out.splitlines()]
    matching = [(path, version) for version, _, path in lines if path and version_matches(version_spec, version)]
    return max(matching, key=lambda found: [int(digits) for digits in re.findall(r"\d{1,9}", found[1])], default=own)
