"""Processes of a run: which are alive, and stopping all that a run started.

A job's processes are found by process group and, since Ray, `setsid` and daemons leave theirs, by the mark that the
agent puts in their environment.
"""

from __future__ import annotations

import os
import signal
import time
from typing import List, NamedTuple, Optional

from . import proc, process_tree, run_directory
from .records import Status


class Identity(NamedTuple):
    """What tells a process from a later one with the same pid, also across a reboot."""

    pid: int
    pid_start: Optional[str]
    boot_id: Optional[str]


def identity() -> Identity:
    """This process."""
    return Identity(os.getpid(), start_time(os.getpid()), proc.boot_id())


def start_time(pid: int) -> Optional[str]:
    """When the process started; None if it has ended."""
    stat = proc.stat(pid)
    return stat.start if stat is not None and stat.is_alive else None


def alive(status: Status) -> bool:
    """Whether the agent that wrote `status` still runs here."""
    return status.pid is not None and is_running(Identity(status.pid, status.pid_start, status.boot_id))


def is_running(process: Identity) -> bool:
    """Whether that very process runs here."""
    started = start_time(process.pid) if process.boot_id == proc.boot_id() else None
    return started is not None and started == process.pid_start


def orphaned_group(status: Status, run_dir: str) -> Optional[int]:
    """The process group of a job whose agent is gone, as long as it is still the job's: by now its number may belong
    to another process."""
    group = status.group if status.boot_id == proc.boot_id() else None
    return group if any(_in_group(pid, group) for pid in of_run(run_dir, None)) else None


def of_run(run_dir: str, group: Optional[int]) -> List[int]:
    """The living processes of the run, this one excepted: those with its mark, and those of the group."""
    mark = os.fsencode("%s=%s" % (run_directory.ENV_RUN_DIR, run_directory.mark(run_dir)))
    others = (pid for pid in proc.pids() if pid != os.getpid())
    return [pid for pid in others if (_in_group(pid, group) or mark in proc.environ(pid)) and start_time(pid)]


def terminate(run_dir: str, group: Optional[int]) -> None:
    """SIGTERM to every process of the run."""
    for pid in of_run(run_dir, group):
        process_tree.send(pid, signal.SIGTERM)


def stop_all(run_dir: str, group: Optional[int], grace: float) -> int:
    """SIGTERM to every process of the run, SIGKILL after `grace` seconds. Returns how many had to be killed."""
    terminate(run_dir, group)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and of_run(run_dir, group):
        time.sleep(0.05)
    return kill_all(run_dir, group)


def kill_all(run_dir: str, group: Optional[int]) -> int:
    """Kill what is left of the run. Returns how many processes that were."""
    return len(process_tree.kill(lambda: of_run(run_dir, group)).killed)


def _in_group(pid: int, group: Optional[int]) -> bool:
    try:
        return bool(group) and os.getpgid(pid) == group
    except OSError:
        return False
