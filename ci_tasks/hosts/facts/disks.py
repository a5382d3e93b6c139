"""Room on a host's disks: the workspace, what it mounts, the image store, /dev/shm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ci_tasks.hosts.facts.fact import Answers, Fact, gb, loaded, python, unknown
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding

_GB = 10**9
_FEW_FILES = 100_000  # a clone of slime has thousands, a venv with torch tens of thousands
_NO_FILES = 1_000
# A path that is not there yet lies on the disk of its nearest directory. df cannot be told to look there.
_SCRIPT = """
import json, os, sys
path = near = os.path.abspath(os.path.expanduser(sys.argv[1]))
while not os.path.exists(near):
    near = os.path.dirname(near)
disk = os.statvfs(near)
print(json.dumps({
    "path": path, "exists": near == path, "directory": os.path.isdir(near),
    "writable": os.access(near, os.W_OK | os.X_OK),
    "free": disk.f_bavail * disk.f_frsize, "total": disk.f_blocks * disk.f_frsize,
    "files_free": disk.f_favail, "files": disk.f_files,
}))
"""


@dataclass(frozen=True)
class Need:
    """Bytes below which a place is a fault or a warning, and why."""

    fault: int
    warning: int
    why: str


WORKSPACE = Need(1 * _GB, 10 * _GB, "clones, venvs and logs of runs lie there")
MOUNT = Need(1 * _GB, 50 * _GB, "a training row writes checkpoints of tens of GB")
CONTAINERS = Need(2 * _GB, 20 * _GB, "containers write there")
PULL = Need(5 * _GB, 80 * _GB, "a training image takes 20 to 40 GB, and half as much again while it is unpacked")
# Without room NCCL and Ray's object store end in bus errors or move to slow disks; docker's 64 MB is never enough.
SHM = Need(1 * _GB, 8 * _GB, "NCCL and Ray exchange tensors through it")


def facts(host: HostSpec, workspace: str) -> list[Fact]:
    return [
        Fact({"workspace": python(_SCRIPT, workspace)}, lambda answers: _workspace(host, answers)),
        *(_mount(ci, here) for ci, here in host.mounts.items()),
    ]


def store(runtime: str, path: str, need: Need) -> Fact:
    """The disk of the runtime's images, a path that the runtime itself has named."""

    def read(answers: Answers) -> list[Finding]:
        found = loaded(answers["store"])
        if not found.get("exists"):
            # A daemon in a VM or in another mount namespace has it where we cannot look.
            return [Finding("disk", UNKNOWN, f"image store {path}: not to be seen from the host's shell")]
        step = f"`{runtime} system df` shows what takes it; `{runtime} image prune` removes images without a name"
        return [room("disk", f"image store {path}", found, need, step)]

    return Fact({"store": python(_SCRIPT, path)}, read)


def shm() -> Fact:
    return Fact({"shm": python(_SCRIPT, "/dev/shm")}, read_shm)


def read_shm(answers: Answers) -> list[Finding]:
    found = loaded(answers["shm"])
    if not found:
        return unknown("/dev/shm", answers["shm"])
    step = "`sudo mount -o remount,size=64G /dev/shm`; inside a container: start it with --ipc=host or a --shm-size"
    if not found.get("exists"):
        return [Finding("/dev/shm", FAULT, "not there; the GPU locks lie in it", "mount a tmpfs at /dev/shm")]
    return [room("/dev/shm", "", found, SHM, step)]


def room(topic: str, name: str, found: Mapping[str, Any], need: Need, step: str) -> Finding:
    """The finding about a disk's free bytes and files. File systems that make inodes as they go count none."""
    free, files = _number(found, "free"), _number(found, "files_free")
    text = f"{f'{name}: ' if name else ''}{gb(free)} free of {gb(_number(found, 'total'))}"
    if free < need.warning:
        return Finding(topic, FAULT if free < need.fault else WARNING, f"{text}; {need.why}", step)
    if _number(found, "files") and files < _FEW_FILES:
        status = FAULT if files < _NO_FILES else WARNING
        return Finding(topic, status, f"{text}, but room for {files:.0f} more files (inodes)", step)
    return Finding(topic, OK, text)


def _workspace(host: HostSpec, answers: Answers) -> list[Finding]:
    found = loaded(answers["workspace"])
    if not found:
        return unknown("disk", answers["workspace"])
    name = f"workspace {found.get('path')}"
    if not (found.get("directory") and found.get("writable")):
        step = "make it writable for you, or name another `workspace` in hosts.yaml"
        return [Finding("disk", FAULT, f"{name}: cannot be written", step)]
    step = f"`invoke clean --host {host.name}` removes what old runs left; or name another `workspace`"
    return [room("disk", name, found, WORKSPACE, step)]


def _mount(ci: str, here: str) -> Fact:
    name = f"mount {here}"

    def read(answers: Answers) -> list[Finding]:
        found = loaded(answers[name])
        if not found:
            return unknown("disk", answers[name])
        if not found.get("exists"):
            step = f"create it with what CI has in {ci}, or correct `mounts` in hosts.yaml"
            return [Finding("disk", FAULT, f"{name}: not there, so rows that mount {ci} are blocked", step)]
        return [room("disk", name, found, MOUNT, f"remove old checkpoints below {here}, or map {ci} to a larger disk")]

    return Fact({name: python(_SCRIPT, here)}, read)


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
