"""What any host needs: Python, git, bash, a clock that is right, space on its disks, and a way to the hub, to which no
token is sent; and a cluster, as its login node shows it."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlsplit

from ci_tasks.agent.nvidia_smi import QUERY_GPUS, parse_gpus
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import Check, CheckResult, fault, ok, remedy, unknown, warning
from ci_tasks.hosts import queries as host_queries
from ci_tasks.hosts.queries import parse_json_object, python_query
from ci_tasks.report.table import size

CLOCK_QUERY = {"clock": python_query("import time; print(repr(time.time()))")}
_TOLERATED_SKEW = 2.0  # seconds; a smaller difference between a host's clock and ours does no harm
# A Python built by hand may lack these modules, which the agent needs.
_PYTHON_VERSION = 'import sys; print("%d.%d.%d" % sys.version_info[:3]); import fcntl, json, zlib'
# Program, its query, the oldest version: Python's is what the agent is written for; git's of 2018 is the oldest whose
# `worktree` and `index-pack` we rely on.
_PROGRAMS = (
    ("Python", python_query(_PYTHON_VERSION), (3, 8), "install Python 3.8 or newer as python3"),
    ("git", ["git", "--version"], (2, 17), "install git 2.17 or newer; the working tree is transferred with it"),
    ("bash", ["bash", "--version"], (), "install bash; CI's steps are written for it"),
)


def programs() -> Check:
    """Whether they are there and new enough."""
    answers = yield {name: query for name, query, *_ in _PROGRAMS}
    results = []
    for name, _, oldest, install in _PROGRAMS:
        found, answer = re.search(r"\d{1,9}(?:\.\d{1,9})+", answers[name].out), answers[name]
        if not found or answer.code != 0:
            results.append(fault(name, answer.last_line, install))
        elif tuple(map(int, found[0].split("."))) < oldest:
            results.append(fault(name, f"{found[0]}, which is too old", install))
        else:
            results.append(ok(name, found[0]))
    return results


def read_clock(answer: QueryAnswer, before: float, after: float) -> CheckResult:
    """The host's time against ours before and after the query: its skew lies between."""
    try:
        there = float(answer.out)
    except ValueError:
        return unknown("clock", answer.last_line)
    skew = there - before if there < before else max(0.0, there - after)
    if abs(skew) <= _TOLERATED_SKEW:
        return ok("clock", f"as here, within {max(after - before, 0.1):.1f} s")
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine: signed downloads may be refused"
    return warning("clock", text, "compare both with `timedatectl`; `sudo timedatectl set-ntp true`")


# -- disks -------------------------------------------------------------------------------------------------------------

# A path that does not exist yet is on the disk of its nearest directory. df cannot find that.
DISK_SCRIPT = """
import json, os, sys
path = near = os.path.abspath(os.path.expanduser(sys.argv[1]))
while not os.path.exists(near):
    near = os.path.dirname(near)
disk = os.statvfs(near)
print(json.dumps({
    "path": path, "exists": near == path, "directory": os.path.isdir(near),
    "writable": os.access(near, os.W_OK | os.X_OK), "noexec": bool(disk.f_flag & os.ST_NOEXEC),
    "free": disk.f_bavail * disk.f_frsize, "total": disk.f_blocks * disk.f_frsize,
}))
"""
# GB of free space below which a place is a fault or a warning, and why.
Space = tuple[int, int, str]
_WORKSPACE: Space = (1, 10, "it stores clones, venvs and logs of runs")
_MOUNT: Space = (1, 50, "a training row writes checkpoints of tens of GB")
# Without space NCCL and Ray's object store end in bus errors or move to slow disks; docker's 64 MB is never enough.
_SHM: Space = (1, 8, "NCCL and Ray exchange tensors through it")


def disks(host: HostSpec, workspace: str) -> Check:
    """The workspace, what the host mounts, and /dev/shm if it has GPUs."""
    queries = {"workspace": disk_query(workspace)} | {path: disk_query(path) for path in host.mounts.values()}
    if host.kind != "slurm" and not host.simulate and host.gpus != 0:
        queries |= {"gpus": QUERY_GPUS, "/dev/shm": disk_query("/dev/shm")}
    answers = yield queries
    results = [_workspace(host, answers["workspace"])]
    for ci, path in host.mounts.items():
        step = f"remove old checkpoints below {path}, or map {ci} to a larger disk"
        results.append(space("disk", f"mount {path}: ", answers[path], _MOUNT, step))
        if parse_json_object(answers[path]).get("exists") is False:
            step = f"create it with the content that CI has in {ci}, or correct `mounts` in hosts.yaml"
            results[-1] = fault("disk", f"mount {path}: missing, so rows that mount {ci} are blocked", step)
    if "/dev/shm" in answers and parse_gpus(answers["gpus"].out):
        step = "`sudo mount -o remount,size=64G /dev/shm`; in a container: start it with --ipc=host or a --shm-size"
        results.append(space("/dev/shm", "", answers["/dev/shm"], _SHM, step))
    return results


def disk_query(path: str) -> list[str]:
    return python_query(DISK_SCRIPT, path)


def space(topic: str, name: str, answer: QueryAnswer, least: Space, step: str) -> CheckResult:
    """The result about a disk's free bytes."""
    disk = parse_json_object(answer)
    free, total = disk.get("free"), disk.get("total")
    if not (isinstance(free, int) and isinstance(total, int)):
        return unknown(topic, f"{name}{answer.last_line}")
    text = f"{name}{size(free)} free of {size(total)}"
    least_free, wanted, why = least
    if free < wanted * 1e9:
        result = fault if free < least_free * 1e9 else warning
        return result(topic, f"{text}; {why}", step)
    return ok(topic, text)


def _workspace(host: HostSpec, answer: QueryAnswer) -> CheckResult:
    disk = parse_json_object(answer)
    name = f"workspace {disk.get('path')}: "
    if disk and not (disk.get("directory") and disk.get("writable")):
        return fault("disk", f"{name}cannot be written", "make it writable for you, or set another `workspace`")
    if disk.get("noexec"):
        step = "set another `workspace` in hosts.yaml, or CI_TASKS_HOME for runs on this machine"
        return fault("disk", f"{name}mounted noexec, so every row is blocked", step)
    step = f"`ci-tasks clean --host {host.name}` removes old runs; or set another `workspace`"
    return space("disk", name if disk else "", answer, _WORKSPACE, step)


_SLURM, _NODES, _ENDED = "Slurm", "GPUs", "accounting"


def slurm(host: HostSpec) -> Check:
    """What `plan` asks the login node, and whether it knows how jobs ended."""
    counted = replace(host, gpus=None)
    answers = yield {
        "sinfo version": ["sinfo", "--version"],
        "partitions": host_queries.PARTITIONS_QUERY,
        "sacct": ["sacct", "--noheader", "--allocations", "--starttime=now"],
        **host_queries.fact_queries(counted, gpus=True, container=False),
    }
    version, sacct = answers["sinfo version"], answers["sacct"]
    if version.code != 0:
        step = "load Slurm's module in the login shell's start file, or name a login node as `address`"
        return [fault(_SLURM, "no sinfo on PATH" if version.is_missing else f"sinfo: {version.last_line}", step)]
    facts = host_queries.parse_facts(counted, answers, simulates=True)
    results = [ok(_SLURM, version.last_line)]
    if problem := host_queries.partition_problem(answers["partitions"], host.partition) or facts.gpu_problem:
        kinds = ", ".join(sorted({*answers["gpus"].out.split()} - {"(null)"})) or "none"
        results.append(fault(_NODES, problem, f"correct `partition` or `gres` in hosts.yaml; its nodes have: {kinds}"))
    else:
        where = f"partition {host.partition}" if host.partition else "the cluster"
        results.append(ok(_NODES, f"{where}: up to {facts.gpus} {host.gres or 'gpu'} a node"))
    if sacct.code == 0:
        return [*results, ok(_ENDED, "sacct answers")]
    text = "no sacct" if sacct.is_missing else f"sacct: {sacct.last_line}"
    step = "ask for accounting (slurmdbd); without it, a job that Slurm forgot and that wrote no end is `lost`"
    return [*results, warning(_ENDED, f"{text}: only squeue tells how a job ended", step)]


_HUB = "hub"
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its switches
_REMEDIES = (
    ("certificate", "install the proxy's certificate on the host, or correct its clock"),
    ("name or service|name resolution", "check the host's DNS, or set HTTPS_PROXY; HF_ENDPOINT sets a mirror"),
    ("HTTP Error 40[13]", "add HF_TOKEN to the host's secrets, or check the rights of the token"),
    ("HTTP Error (429|5)", "wait some minutes; limits are higher with HF_TOKEN among the host's secrets"),
)  # fmt: skip
_OTHERWISE = "allow outgoing HTTPS, or set HTTPS_PROXY; or in `env`: HF_ENDPOINT (a mirror), HF_HUB_OFFLINE"
# An error that is no OSError may repeat an address with the password in it, so only its type is shown.
_SCRIPT = """
import json, os, sys, urllib.parse, urllib.request
parts = urllib.parse.urlsplit(sys.argv[1] or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
error = ""
try:
    request = urllib.request.Request(endpoint + "/api/models?limit=1", headers={"User-Agent": "ci-tasks doctor"})
    urllib.request.urlopen(request, timeout=5).close()
except OSError as problem:
    error = str(problem) or type(problem).__name__
except Exception as problem:
    error = type(problem).__name__
by = ", through a proxy" if parts.scheme in urllib.request.getproxies() else ""
print(json.dumps({"name": endpoint + by, "error": error}))
"""


def hub(host: HostSpec) -> Check:
    if host.env.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        yield {}
        return [ok(_HUB, "not checked: HF_HUB_OFFLINE is set in hosts.yaml")]
    parts = urlsplit(host.env.get("HF_ENDPOINT", ""))
    endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a login
    answers = yield {_HUB: python_query(_SCRIPT, endpoint)}
    response = parse_json_object(answers[_HUB])
    if not response:
        return [unknown(_HUB, answers[_HUB].last_line)]
    name, error = response.get("name"), str(response.get("error")).removeprefix("<urlopen error ").rstrip(">")
    if not error:
        return [ok(_HUB, f"{name} answers")]
    result = warning if "HTTP Error" in error and "407" not in error else fault
    return [result(_HUB, f"{name}: {error}", remedy(error, _REMEDIES, _OTHERWISE))]
