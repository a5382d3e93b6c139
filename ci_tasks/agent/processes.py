"""Processes of a run: which are alive, and stopping all that a run started.

A job's processes are found by process group and, since Ray, `setsid` and daemons leave theirs, by the mark that the
agent puts in their environment. On a system without /proc only the group is known.
"""

from __future__ import annotations

import os
import signal
import time
from typing import List, NamedTuple, Optional, Set

from . import run_directory
from .files import content_of
from .records import Status

_PROC = "/proc"


class Identity(NamedTuple):
    """What tells a process from a later one with the same pid, also across a reboot."""

    pid: int
    pid_start: Optional[str]
    boot_id: Optional[str]


def identity() -> Identity:
    """This process."""
    return Identity(os.getpid(), start_time(os.getpid()), boot_id())


def boot_id() -> Optional[str]:
    return content_of(_PROC + "/sys/kernel/random/boot_id").decode("ascii").strip() or None


def start_time(pid: int) -> Optional[str]:
    """When the process started, in clock ticks since boot (field 22 of /proc/PID/stat); None where it is gone."""
    # The command's name, in brackets, may itself hold spaces and brackets.
    fields = content_of("%s/%d/stat" % (_PROC, pid)).decode("utf-8", "replace").rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def alive(status: Status) -> bool:
    """Whether the agent that wrote `status` still runs here."""
    return status.pid is not None and is_running(Identity(status.pid, status.pid_start, status.boot_id))


def is_running(process: Identity) -> bool:
    """Whether that very process runs here."""
    if process.boot_id != boot_id():
        return False
    if _has_proc():
        return start_time(process.pid) is not None and start_time(process.pid) == process.pid_start
    try:
        os.kill(process.pid, 0)
    except OSError:
        return False
    return True


def orphaned_group(status: Status, run_dir: str) -> Optional[int]:
    """The process group of a job whose agent is gone, as long as it is still the job's: by now its number may belong
    to somebody else."""
    group = status.group
    if group is None or status.boot_id != boot_id():
        return None
    if _has_proc() and not any(_in_group(pid, group) for pid in of_run(run_dir, None)):
        return None
    return group


def of_run(run_dir: str, group: Optional[int]) -> List[int]:
    """The living processes of the run, this one excepted: those with its mark, and those of the group."""
    mark = os.fsencode("%s=%s" % (run_directory.ENV_RUN_DIR, run_directory.mark(run_dir)))
    return [pid for pid in _pids() if (_in_group(pid, group) or _has(pid, mark)) and start_time(pid) is not None]


def terminate(run_dir: str, group: Optional[int]) -> None:
    """SIGTERM to every process of the run."""
    _signal(group, of_run(run_dir, group), signal.SIGTERM)


def stop_all(run_dir: str, group: Optional[int], grace: float) -> int:
    """SIGTERM to every process of the run, SIGKILL after `grace` seconds. Returns how many had to be killed."""
    terminate(run_dir, group)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and _any_left(run_dir, group):
        time.sleep(0.05)
    return kill_all(run_dir, group)


def kill_all(run_dir: str, group: Optional[int]) -> int:
    """Kill what is left of the run; again and again, since a process may fork while it is being looked for."""
    killed: Set[int] = set()
    for _ in range(20):
        left = of_run(run_dir, group)
        if not left and not _any_left(run_dir, group):
            break
        killed.update(left)
        _signal(group, left, signal.SIGKILL)
        time.sleep(0.02)
    return len(killed)


def _any_left(run_dir: str, group: Optional[int]) -> bool:
    if _has_proc():
        return bool(of_run(run_dir, group))
    try:
        os.killpg(group or 0, 0)
    except OSError:
        return False
    return bool(group)


def _signal(group: Optional[int], pids: List[int], number: int) -> None:
    if group:
        try:
            os.killpg(group, number)  # all in one call, so that none of them forks in between
        except OSError:
            pass
    for pid in pids:
        if _in_group(pid, group):
            continue
        try:
            os.kill(pid, number)
        except OSError:
            pass


def _pids() -> List[int]:
    names = os.listdir(_PROC) if _has_proc() else []
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _has_proc() -> bool:
    return os.path.isdir(_PROC + "/self")


def _in_group(pid: int, group: Optional[int]) -> bool:
    try:
        return bool(group) and os.getpgid(pid) == group
    except OSError:
        return False


def _has(pid: int, mark: bytes) -> bool:
    return mark in content_of("%s/%d/environ" % (_PROC, pid)).split(b"\0")
