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
from contextlib import suppress
from typing import Iterator, List, Optional, Sequence, Set

from . import proc, programs
from .processes import KillResult, kill, send

_PR_SET_CHILD_SUBREAPER = 36
# Runs a program that ends with the thread that started it. Not in preexec_fn, since this process has threads.
_DIES_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def become_subreaper() -> None:
    """Orphans below this process become its children, not init's."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent(argv: Sequence[str]) -> List[str]:
    """The argv of a program that the kernel kills when the calling thread ends, also if that is killed."""
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *argv]


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
    """Reap what the job's dead processes left to this process; not the job itself, whose exit code is waited for. Does
    nothing while a program of the agent's starts: it may be one of the dead, and its own end is a further occasion."""
    session = _session_of(os.getpid())
    with programs.lock:
        for pid in [] if programs.starting else proc.children(os.getpid()):
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
