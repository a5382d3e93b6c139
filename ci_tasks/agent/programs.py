"""Starts programs and ends them: each in a session of its own, which a supervisor does not take for its job's."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Optional, Sequence, Set

if TYPE_CHECKING:
    import subprocess

own_sessions: Set[int] = set()  # the sessions of programs that run now: in the supervisor they are not the job's
starting_programs: List[str] = []  # in no `own_sessions` yet: they may have ended, but not have been waited for
programs_lock = threading.Lock()  # of both; never held while a program starts: a file system may hang


def start(
    argv: Sequence[str], environ: Optional[Mapping[str, str]], cwd: str, **more: Any
) -> "subprocess.Popen[bytes]":
    """Start a program for `ended`, with further arguments of Popen. Raises OSError."""
    import subprocess  # a command that only looks needs none

    with programs_lock:
        starting_programs.append(argv[0])
    try:
        process = subprocess.Popen(list(argv), env=environ, cwd=cwd, **{"start_new_session": True, **more})
        own_sessions.add(process.pid)
        return process
    finally:
        with programs_lock:
            starting_programs.remove(argv[0])


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """The block waits for the program; if it raises, the program is killed."""
    try:
        yield
    except BaseException:
        end_session(process)
        raise
    finally:
        own_sessions.discard(process.pid)


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program, with its children if it leads a session. One that a driver holds is not waited for."""
    import subprocess

    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
        with suppress(OSError):  # what it did not read stays unread
            pipe.close()
    with suppress(subprocess.TimeoutExpired):  # the kernel may hold it
        process.wait(1.0)
