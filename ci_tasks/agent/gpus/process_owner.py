"""Whose a process on a GPU is: the run's, somebody else's, or not known. Only what the kernel shows counts."""

from __future__ import annotations

import os
import re
from typing import Callable, Collection, Dict, List, Optional, Set, Tuple

from .. import process_tree, processes, run_directory
from ..files import content_of
from ..records import Plan, ProcessOwner

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_SESSION = re.compile(r"\.slice/\S*\.(?:scope|service)\b")
_CONTAINER = re.compile(r"docker|libpod|podman|containerd|crio|kubepods|lxc|machine\.slice")
_PROC = "/proc"


class ProcessOwners:
    """`containers` are the ids of the run's containers, as far as they are known by now."""

    def __init__(self, run_dir: str, plan: Plan, containers: Callable[[], Collection[str]]) -> None:
        self._agent = os.getpid()
        self._mark = os.fsencode("%s=%s" % (run_directory.ENV_RUN_DIR, run_directory.mark(run_dir)))
        self._began = _ticks(processes.start_time(self._agent))
        self._containers = containers
        self._own_ids = set(_CONTAINER_ID.findall(_cgroups(self._agent)))
        self._slurm_job = os.environ.get("SLURM_JOB_ID", "")
        # A container that was kept has processes from before this run.
        self._is_retry = plan.retry is not None
        # Without a daemon that starts containers, all processes of the job are below its agent.
        self._all_below = not plan.has_container_daemon and not self._slurm_job
        self._has_daemon = plan.has_container_daemon
        self._known: Dict[Tuple[int, str], ProcessOwner] = {}

    def owner(self, pid: int) -> ProcessOwner:
        start = processes.start_time(pid)
        if start is None:
            return "unknown"  # of another PID namespace, or gone
        key = (pid, start)
        if key not in self._known:
            owner = self._owner(pid, _ticks(start))
            if owner == "unknown":
                return owner  # its container may be known a little later
            self._known[key] = owner
        return self._known[key]

    def _owner(self, pid: int, start: Optional[int]) -> ProcessOwner:
        if process_tree.is_below(pid, self._agent) or self._mark in _environment(pid):
            return "run"
        cgroups = _cgroups(pid)
        ids: Set[str] = set(_CONTAINER_ID.findall(cgroups)) - self._own_ids
        if ids & set(self._containers()):
            return "run"
        if self._slurm_job and re.search(r"\bjob_%s\b" % re.escape(self._slurm_job), cgroups):
            return "run"
        if self._is_retry:
            return "unknown"
        is_older = start is not None and self._began is not None and start < self._began
        is_outside = self._all_below or (self._has_daemon and not ids and _is_session(cgroups))
        return "other" if is_older or is_outside else "unknown"


def _is_session(cgroups: str) -> bool:
    """Whether the process is shown to be in no container: it is in a cgroup that systemd made for a login or a
    service."""
    return bool(_SESSION.search(cgroups)) and not _CONTAINER.search(cgroups)


def _ticks(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdigit() else None


def _cgroups(pid: int) -> str:
    return content_of("%s/%d/cgroup" % (_PROC, pid)).decode("utf-8", "replace")


def _environment(pid: int) -> List[bytes]:
    return content_of("%s/%d/environ" % (_PROC, pid)).split(b"\0")
