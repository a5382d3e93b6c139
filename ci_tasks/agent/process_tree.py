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
from typing import Iterator, List, NamedTuple, Optional, Sequence, Set

from . import proc, programs

KILL_SECONDS = 5.0  # for killed processes to be gone; one that a driver or a file system holds never is
_PR_SET_CHILD_SUBREAPER = 36
# Runs a program that ends with the thread that started it. Not in preexec_fn, since this process has threads.
_DIES_WITH_PARENT = """\
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
_EMPTY_PASSES = 2  # the kernel may leave out a process while another one beside it ends
_PAUSE_SECONDS = 0.005
_DEEPEST = 1000  # processes above each other; a parent that changes meanwhile must not lead in a circle


class KillResult(NamedTuple):
    """The processes that were killed, and those of them that did not end."""

    killed: Set[int]
    left: List[int]


def become_subreaper() -> None:
    """Orphans below this process become its children, not init's. Does nothing elsewhere than on Linux."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def dying_with_parent(argv: Sequence[str]) -> List[str]:
    """The argv of a program that the kernel kills when the calling thread ends, also where that is killed."""
    if not sys.executable:
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *argv]


def reap_orphans(job: Optional[int]) -> None:
    """Reap what the job's dead processes left to this process; not the job itself, whose exit code is waited for."""
    session = _session_of(os.getpid())
    for pid in proc.children(os.getpid()):
        stat = proc.stat(pid)
        if stat is not None and stat.state == "Z" and stat.session != session and pid != job:
            _reap(pid)


def is_below(pid: int, top: int) -> bool:
    """Whether `top` started the process, or one that did."""
    for _ in range(_DEEPEST):
        stat = proc.stat(pid)
        if stat is None or pid <= 1:
            return False
        if stat.parent == top:
            return True
        pid = stat.parent
    return False


def kill_job(job: Optional[int]) -> KillResult:
    """Kill every process of the job below this process, again and again: one may fork while it is being looked for."""
    return _kill(_session_of(os.getpid()), job)


def of_job(agent: int) -> List[int]:
    """The processes below a run's agent that are not its own programs."""
    return list(_living(agent, _session_of(agent)))


def kill_everything() -> None:
    """Kill every process below this one, its own programs too. Nobody may wait for any of them any more."""
    _kill(None, None)


def kill_tree(pid: int) -> None:
    """Kill a process that hangs, and what is below it."""
    for process in [*_living(pid, None), pid]:
        _send_kill(process)


def kill_and_reap(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program of the agent's with its children, such as the ssh of DOCKER_HOST=ssh://..., which would keep its
    pipes open. Nobody waits for one that the kernel holds."""
    kill_tree(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)


def _kill(except_session: Optional[int], job: Optional[int]) -> KillResult:
    killed: Set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    empty = 0
    while True:
        left = []
        for pid in _living(os.getpid(), except_session):  # each at once: where one forks and exits, the newest counts
            left.append(pid)
            _send_kill(pid)
        if except_session is not None:
            reap_orphans(job)
        empty = 0 if left else empty + 1
        if empty == _EMPTY_PASSES or time.monotonic() > deadline:
            return KillResult(killed, left)
        if killed.issuperset(left):
            time.sleep(_PAUSE_SECONDS)
        killed.update(left)


def _living(top: int, except_session: Optional[int]) -> Iterator[int]:
    """The processes below `top` that have not ended, without those of a session."""
    pending = proc.children(top)
    while pending:
        pid = pending.pop()
        stat = proc.stat(pid)
        if stat is not None and stat.is_alive:
            if except_session is not None and stat.session in programs.running:
                continue  # nvidia-smi, docker: the agent's own
            if stat.session != except_session:
                yield pid
            pending += proc.children(pid)


def _session_of(pid: int) -> Optional[int]:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _send_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        pass
