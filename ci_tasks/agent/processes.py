"""Processes of a run: which are alive, and stopping all that a run started.

A job's processes are found by process group and, since Ray, `setsid` and daemons leave theirs, by the mark that the
agent puts in their environment.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Callable, Iterable, List, NamedTuple, Optional, Set

from . import proc, run_directory
from .records import Status

KILL_SECONDS = 5.0  # for killed processes to be gone; one that a driver or a file system holds never is
_EMPTY_PASSES = 2  # the kernel may leave out a process while another one beside it ends
_PAUSE_SECONDS = 0.005


class Identity(NamedTuple):
    """What tells a process from a later one with the same pid, also across a reboot."""

    pid: int
    pid_start: Optional[str]
    boot_id: Optional[str]


class KillResult(NamedTuple):
    """The processes that were killed, and those of them that did not end."""

    killed: Set[int]
    left: List[int]


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
        send(pid, signal.SIGTERM)


def stop_all(run_dir: str, group: Optional[int], grace: float) -> int:
    """SIGTERM to every process of the run, SIGKILL after `grace` seconds. Returns how many had to be killed."""
    terminate(run_dir, group)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and of_run(run_dir, group):
        time.sleep(0.05)
    return kill_all(run_dir, group)


def kill_all(run_dir: str, group: Optional[int]) -> int:
    """Kill what is left of the run. Returns how many processes that were."""
    return len(kill(lambda: of_run(run_dir, group)).killed)


def kill(find: Callable[[], Iterable[int]]) -> KillResult:
    """Kill what `find` finds until nothing is left or KILL_SECONDS have passed: a process may fork meanwhile."""
    killed: Set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    empty = 0
    while True:
        left = []
        for pid in find():  # each at once: of processes that fork and exit, the newest counts
            left.append(pid)
            send(pid, signal.SIGKILL)
        empty = 0 if left else empty + 1
        if empty == _EMPTY_PASSES or time.monotonic() > deadline:
            return KillResult(killed, left)
        if killed.issuperset(left):
            time.sleep(_PAUSE_SECONDS)
        killed.update(left)


def send(pid: int, number: int) -> None:
    """Send a signal, if the process still exists and is ours."""
    with suppress(OSError):
        os.kill(pid, number)


def _in_group(pid: int, group: Optional[int]) -> bool:
    try:
        return bool(group) and os.getpgid(pid) == group
    except OSError:
        return False
