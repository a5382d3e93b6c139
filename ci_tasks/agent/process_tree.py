"""The processes below the agent, as the kernel knows them: whatever a process does to its environment, title, group or
session, it stays below the agent, which is their child subreaper.

The agent's own programs share its session, or are those of `programs`. A job begins in another one, and no process can
join a session that exists: whatever is below the agent in another session is the job's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

from . import proc, programs

KILL_SECONDS = 5.0  # for killed processes to be gone; one that a driver or a file system holds never is
_PR_SET_CHILD_SUBREAPER = 36
# Runs a program that ends with the thread that started it. Not in preexec_fn, since this process has threads.
_DIES_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
_EMPTY_PASSES = 2  # the kernel may leave out a process while another one beside it ends
_PAUSE_SECONDS = 0.005


class KillResult(NamedTuple):
    """The processes that were killed, and those of them that did not end."""

    killed: Set[int]
    left: List[int]


def become_subreaper() -> None:
    """Orphans below this process become its children, not init's."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent(argv: Sequence[str]) -> List[str]:
    """The argv of a program that the kernel kills when the calling thread ends, also if that is killed."""
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *argv]


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


def kill_job() -> KillResult:
    """Kill every process of the job below this process."""
    return kill(lambda: _living(os.getpid(), _session_of(os.getpid())))


def kill_everything() -> None:
    """Kill every process below this one, its own programs too. Do not wait for any of them afterwards."""
    kill(lambda: _living(os.getpid(), None))


def kill_tree(pid: int) -> None:
    """Kill a process that hangs, and what is below it."""
    for process in [*_living(pid, None), pid]:
        send(process, signal.SIGKILL)


def kill_and_reap(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program of the agent's with its children, such as the ssh of DOCKER_HOST=ssh://..., which would keep its
    pipes open. One that the kernel holds is not waited for."""
    kill_tree(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)


def reap_orphans(job: Optional[int]) -> None:
    """Reap what the job's dead processes left to this process; not the job itself, whose exit code is waited for."""
    session = _session_of(os.getpid())
    for pid in proc.children(os.getpid()):
        stat = proc.stat(pid)
        if stat and stat.state == "Z" and stat.session != session and pid != job and pid not in programs.running:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def is_below(pid: int, top: int) -> bool:
    """Whether `top` started the process, or one that did."""
    seen: Set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        stat = proc.stat(pid)
        pid = stat.parent if stat is not None else 0
        if pid == top:
            return True
    return False


def of_job(agent: int) -> List[int]:
    """The processes below a run's agent that are not its own programs."""
    return list(_living(agent, _session_of(agent)))


def send(pid: int, number: int) -> None:
    """Send a signal, if the process still exists and is ours."""
    with suppress(OSError):
        os.kill(pid, number)


def _living(top: int, except_session: Optional[int]) -> Iterator[int]:
    """The processes below `top` that have not ended; without those of a session, and the agent's own programs."""
    pending = proc.children(top)
    while pending:
        pid = pending.pop()
        stat = proc.stat(pid)
        if stat is None or not stat.is_alive or (except_session is not None and stat.session in programs.running):
            continue
        if stat.session != except_session:
            yield pid
        pending += proc.children(pid)


def _session_of(pid: int) -> Optional[int]:
    with suppress(OSError):
        return os.getsid(pid)
    return None
