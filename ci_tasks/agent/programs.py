"""Runs programs of this host, each with a timeout and in a session of its own, so that all of it can be ended."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set

if TYPE_CHECKING:
    import subprocess

    from .records import QueryAnswer

MAX_BYTES = 1 << 20  # of an output, its last ones
running: Set[int] = set()  # the sessions of programs that run now: in the supervisor they are not the job's
starting: List[str] = []  # programs that are in no `running` yet: they may have ended, but not have been waited for
lock = threading.Lock()  # of both; never held while a program starts, which takes as long as a file system does


def start(
    argv: Sequence[str], environ: Optional[Mapping[str, str]], cwd: str, **more: Any
) -> "subprocess.Popen[bytes]":
    """Start a program for `ended`, with further arguments of Popen. Raises OSError."""
    import subprocess  # a command that only looks needs none

    with lock:
        starting.append(argv[0])
    try:
        process = subprocess.Popen(list(argv), env=environ, cwd=cwd, **{"start_new_session": True, **more})
        running.add(process.pid)
        return process
    finally:
        with lock:
            starting.remove(argv[0])


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """The block waits for the program; if it raises, the program is killed."""
    try:
        yield
    except BaseException:
        end_session(process)
        raise
    finally:
        running.discard(process.pid)


def run_program(
    argv: Sequence[str],
    timeout: float,
    environ: Optional[Mapping[str, str]] = None,
    *,
    cwd: str = "/",  # Python loads what `-c` and `-m` import from here first: not from a checkout
    stdin: bytes = b"",
) -> QueryAnswer:
    """Output and exit code of a program. `code` is None if it is missing or did not end within `timeout` seconds; `err`
    says which. `environ` is its environment (default: our own). Never raises OSError."""
    import subprocess

    from .records import QueryAnswer

    pipe, source = subprocess.PIPE, subprocess.PIPE if stdin else subprocess.DEVNULL
    try:
        process = start(argv, environ, cwd, stdin=source, stdout=pipe, stderr=pipe)
    except OSError as error:
        return QueryAnswer(None, err="%s: %s" % (argv[0], error.strerror))
    try:
        with ended(process):
            out, err = (output[-MAX_BYTES:].decode(errors="replace") for output in process.communicate(stdin, timeout))
    except subprocess.TimeoutExpired:
        return QueryAnswer(None, err="no answer from %s within %g s" % (argv[0], timeout))
    return QueryAnswer(process.returncode, out, err)


def ask(
    commands: Mapping[str, Sequence[str]], timeout: float, environ: Optional[Mapping[str, str]] = None
) -> Dict[str, QueryAnswer]:
    """The same for several programs at the same time: name → argv, and name → answer."""
    answers: Dict[str, QueryAnswer] = {}

    def put(name: str, argv: Sequence[str]) -> None:
        answers[name] = run_program(argv, timeout, environ)

    threads = [threading.Thread(target=put, args=command, daemon=True) for command in commands.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: answers[name] for name in commands}


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program, with its children if it leads a session. One that a driver holds is not waited for."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    wait_a_moment(process)


def wait_a_moment(process: "subprocess.Popen[bytes]") -> None:
    """Reap a program that was killed; not one that the kernel holds."""
    import subprocess

    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
