"""Which GPUs of this host a request may use, and descriptions of what is wrong with the others."""

from __future__ import annotations

import os
from typing import Container, Dict, List

from . import lock_files, lock_holders
from .nvidia_smi import GpuSnapshot, gpus_in_use
from .request import GpuRequest


def missing_gpus(request: GpuRequest, snapshot: GpuSnapshot) -> List[int]:
    """The GPUs that the lock script assumes and this host does not have."""
    return sorted(set(range(request.total)) - set(snapshot.ids))


def usable_gpus(request: GpuRequest, snapshot: GpuSnapshot) -> List[int]:
    """The GPUs that exist and that no process uses."""
    in_use = gpus_in_use(snapshot.gpus, snapshot.apps)
    return [gpu for gpu in snapshot.ids if gpu < request.total and gpu not in in_use]


def unmet_requirement(request: GpuRequest, snapshot: GpuSnapshot) -> str:
    """Why the request can never be met here; empty where it can."""
    if snapshot.problem:
        return "nvidia-smi shows no GPUs: %s" % snapshot.problem
    count = sum(gpu < request.total for gpu in snapshot.ids)
    if count < request.count:
        return "this host has %d GPU%s, the job needs %d" % (count, "s"[: count != 1], request.count)
    return ""


def wait_reasons(request: GpuRequest, snapshot: GpuSnapshot, own: Container[int]) -> List[str]:
    """What keeps the request from being met now; `own` are the GPUs whose locks this process holds."""
    missing = missing_gpus(request, snapshot)
    in_use = gpus_in_use(snapshot.gpus, snapshot.apps)
    paths = {gpu: path for gpu, path in request.paths().items() if gpu not in missing}
    holders = _describe_holders(paths)
    reasons: Dict[int, str] = {}
    for gpu, path in paths.items():
        if gpu in holders:
            reasons[gpu] = " held by " + holders[gpu]
        elif gpu in in_use:
            reasons[gpu] = ": %s without a lock" % in_use[gpu]
        elif gpu not in own and os.path.exists(path) and not lock_files.is_free(path):
            reasons[gpu] = " held by " + lock_holders.UNKNOWN
    absent = "%s %s not exist here" % (lock_holders.numbered("GPU", missing), "do" if len(missing) > 1 else "does")
    return lock_holders.group_by_reason(reasons) + ([absent] if missing else [])


def other_reservation(request: GpuRequest) -> List[str]:
    """The run that reserves GPUs just now, if it is another one and known."""
    return ["%s reserves GPUs first" % holder for holder in _describe_holders({0: request.reservation_lock}).values()]


def _describe_holders(paths: Dict[int, str]) -> Dict[int, str]:
    """{key: description} of other processes with an exclusive lock on one of the files."""
    pids: Dict[int, int] = {}
    for key, locks in lock_files.held_locks(paths).items():
        others = [lock.pid for lock in locks if not lock.shared and lock.pid != os.getpid()]
        if others:
            pids[key] = others[0]
    descriptions = {pid: lock_holders.describe_process(pid) for pid in set(pids.values())}
    return {key: descriptions[pid] for key, pid in pids.items()}
