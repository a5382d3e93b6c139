"""Processes of a run: who is alive, and ending everything that a run started.

A job's processes are found by process group and, since Ray, `setsid` and daemons leave theirs, by the mark that the
runner puts in their environment. On a system without /proc only the group is known.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List, Optional

from . import layout

_PROC = "/proc"


def identity() -> Dict[str, Any]:
    """What tells this process from a later one with the same pid, also across a reboot."""
    return {"pid": os.getpid(), "pid_start": start_time(os.getpid()), "boot_id": boot_id()}


def boot_id() -> Optional[str]:
    try:
        with open(_PROC + "/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return None


def start_time(pid: int) -> Optional[str]:
    """When the process started, in clock ticks since boot (field 22 of /proc/PID/stat); None where it is gone."""
    try:
        with open("%s/%d/stat" % (_PROC, pid), encoding="utf-8", errors="replace") as source:
            # The command's name, in brackets, may itself hold spaces and brackets.
            fields = source.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def alive(status: Dict[str, Any]) -> bool:
    """Whether the runner that wrote `status` still runs here."""
    pid = status.get("pid")
    if not isinstance(pid, int) or status.get("boot_id") != boot_id():
        return False
    if os.path.isdir(_PROC + "/self"):
        return start_time(pid) is not None and start_time(pid) == status.get("pid_start")
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def marked(run_dir: str) -> List[int]:
    """The processes that carry the run's mark, this one excepted."""
    mark = os.fsencode("%s=%s" % (layout.ENV_RUN_DIR, run_dir))
    found = []
    for name in os.listdir(_PROC) if os.path.isdir(_PROC + "/self") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("%s/%s/environ" % (_PROC, name), "rb") as source:
                if mark in source.read().split(b"\0") and start_time(int(name)) is not None:
                    found.append(int(name))
        except OSError:
            continue
    return found


def end_all(run_dir: str, group: Optional[int], patience: float) -> int:
    """Ask every process of the run to stop, wait `patience` seconds, then kill. Returns how many had to be killed."""
    _signal(group, marked(run_dir), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and (marked(run_dir) or _group_lives(group)):
        time.sleep(0.05)
    return kill_all(run_dir, group)


def kill_all(run_dir: str, group: Optional[int]) -> int:
    """Kill what is left of the run; again and again, since a process may fork while it is being looked for."""
    killed = set()
    for _ in range(20):
        left = marked(run_dir)
        if not left and not _group_lives(group):
            break
        killed.update(left)
        _signal(group, left, signal.SIGKILL)
        time.sleep(0.02)
    return len(killed)


def _signal(group: Optional[int], pids: List[int], number: int) -> None:
    if group:
        try:
            os.killpg(group, number)
        except OSError:
            pass
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def _group_lives(group: Optional[int]) -> bool:
    if not group:
        return False
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    # A group whose only member is our own zombie still answers; it is reaped by whoever waits for it.
    return any(_in_group(int(name), group) for name in os.listdir(_PROC) if name.isdigit()) if _has_proc() else True


def _has_proc() -> bool:
    return os.path.isdir(_PROC + "/self")


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and start_time(pid) is not None
    except OSError:
        return False
