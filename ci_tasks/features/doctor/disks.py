"""Free space on a host's disks: the workspace, what it mounts, the image store, /dev/shm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import FAULT, WARNING, CheckResult, fault, ok, unknown
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers, gb, unanswered
from ci_tasks.hosts.queries import parse_json_object, python_query

_GB = 10**9
_FEW_FILES = 100_000  # a clone of slime has thousands, a venv with torch tens of thousands
_NO_FILES = 1_000
# A path that is not there yet lies on the disk of its nearest directory. df cannot do that.
_SCRIPT = """
import json, os, sys
path = near = os.path.abspath(os.path.expanduser(sys.argv[1]))
while not os.path.exists(near):
    near = os.path.dirname(near)
disk = os.statvfs(near)
print(json.dumps({
    "path": path, "exists": near == path, "directory": os.path.isdir(near),
    "writable": os.access(near, os.W_OK | os.X_OK), "noexec": bool(disk.f_flag & os.ST_NOEXEC),
    "free": disk.f_bavail * disk.f_frsize, "total": disk.f_blocks * disk.f_frsize,
    "files_free": disk.f_favail, "files": disk.f_files,
}))
"""


SHM_QUERY = python_query(_SCRIPT, "/dev/shm")


@dataclass(frozen=True)
class SpaceLimits:
    """Free bytes below which a directory is a warning or a fault, and why."""

    fault: int
    warning: int
    why: str


WORKSPACE = SpaceLimits(1 * _GB, 10 * _GB, "clones, venvs and logs of runs lie there")
MOUNT = SpaceLimits(1 * _GB, 50 * _GB, "a training row writes checkpoints of tens of GB")
CONTAINERS = SpaceLimits(2 * _GB, 20 * _GB, "containers write there")
PULL = SpaceLimits(5 * _GB, 80 * _GB, "a training image takes 20 to 40 GB, and half as much again while it is unpacked")
# Without space NCCL and Ray's object store end in bus errors or move to slow disks; docker's 64 MB is never enough.
SHM = SpaceLimits(1 * _GB, 8 * _GB, "NCCL and Ray exchange tensors through it")


def facts(host: HostSpec, workspace: str) -> list[HostFact]:
    return [
        HostFact({"workspace": python_query(_SCRIPT, workspace)}, lambda answers: _workspace(host, answers)),
        *(_mount(ci, here) for ci, here in host.mounts.items()),
    ]


def store(runtime: str, path: str, limits: SpaceLimits) -> HostFact:
    """The disk of the runtime's images, a path that the runtime itself has named."""

    def read(answers: QueryAnswers) -> list[CheckResult]:
        disk = parse_json_object(answers["store"])
        if not disk.get("exists"):
            # A daemon in a VM or in another mount namespace has it where we cannot look.
            return [unknown("disk", f"image store {path}: not visible from the host's shell")]
        step = f"`{runtime} system df` shows what takes it; `{runtime} image prune` removes images without a name"
        return [free_space("disk", f"image store {path}", disk, limits, step)]

    return HostFact({"store": python_query(_SCRIPT, path)}, read)


def parse_shm(answers: QueryAnswers) -> list[CheckResult]:
    disk = parse_json_object(answers["shm"])
    if not disk:
        return unanswered("/dev/shm", answers["shm"])
    step = "`sudo mount -o remount,size=64G /dev/shm`; inside a container: start it with --ipc=host or a --shm-size"
    if not disk.get("exists"):
        return [fault("/dev/shm", "not there; the GPU locks lie in it", "mount a tmpfs at /dev/shm")]
    return [free_space("/dev/shm", "", disk, SHM, step)]


def free_space(topic: str, name: str, disk: Mapping[str, Any], limits: SpaceLimits, step: str) -> CheckResult:
    """The result about a disk's free bytes and files. File systems that make inodes as they go count none."""
    free, files = _number(disk, "free"), _number(disk, "files_free")
    text = f"{f'{name}: ' if name else ''}{gb(free)} free of {gb(_number(disk, 'total'))}"
    if free < limits.warning:
        return CheckResult(topic, FAULT if free < limits.fault else WARNING, f"{text}; {limits.why}", step)
    if _number(disk, "files") and files < _FEW_FILES:
        status = FAULT if files < _NO_FILES else WARNING
        return CheckResult(topic, status, f"{text}, but space for {files:.0f} more files (inodes)", step)
    return ok(topic, text)


def _workspace(host: HostSpec, answers: QueryAnswers) -> list[CheckResult]:
    disk = parse_json_object(answers["workspace"])
    if not disk:
        return unanswered("disk", answers["workspace"])
    name = f"workspace {disk.get('path')}"
    if not (disk.get("directory") and disk.get("writable")):
        step = "make it writable for you, or name another `workspace` in hosts.yaml"
        return [fault("disk", f"{name}: cannot be written", step)]
    if disk.get("noexec"):
        step = "set another `workspace` in hosts.yaml, or CI_TASKS_HOME for runs on this machine"
        return [fault("disk", f"{name}: mounted noexec, so every row is blocked", step)]
    step = f"`ci-tasks clean --host {host.name}` removes what old runs left; or name another `workspace`"
    return [free_space("disk", name, disk, WORKSPACE, step)]


def _mount(ci: str, here: str) -> HostFact:
    name = f"mount {here}"

    def read(answers: QueryAnswers) -> list[CheckResult]:
        disk = parse_json_object(answers[name])
        if not disk:
            return unanswered("disk", answers[name])
        if not disk.get("exists"):
            step = f"create it with what CI has in {ci}, or correct `mounts` in hosts.yaml"
            return [fault("disk", f"{name}: not there, so rows that mount {ci} are blocked", step)]
        return [
            free_space("disk", name, disk, MOUNT, f"remove old checkpoints below {here}, or map {ci} to a larger disk")
        ]

    return HostFact({name: python_query(_SCRIPT, here)}, read)


def _number(disk: Mapping[str, Any], name: str) -> float:
    value = disk.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
