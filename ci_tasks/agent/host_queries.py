"""Runs programs of this host at the same time, each in a session of its own and with a timeout."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Dict, Mapping, Optional, Sequence

from .records import QueryAnswer

REAP_SECONDS = 1.0  # seconds for a killed program to be gone
Outputs = Dict[str, QueryAnswer]
MAX_BYTES = 1 << 20  # of an output, its last ones


def ask(commands: Mapping[str, Sequence[str]], timeout: float, environ: Optional[Mapping[str, str]] = None) -> Outputs:
    """name → output of its argv. `code` is None for a program that is missing, or that did not end within `timeout`
    seconds; `err` says which. `environ` is theirs; None for our own."""
    outputs: Outputs = {}
    threads = [
        threading.Thread(target=_put, args=(name, argv, timeout, environ, outputs), daemon=True)
        for name, argv in commands.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: outputs[name] for name in commands}


def _put(
    name: str, argv: Sequence[str], timeout: float, environ: Optional[Mapping[str, str]], outputs: Outputs
) -> None:
    outputs[name] = _run(argv, timeout, environ)


def _run(argv: Sequence[str], timeout: float, environ: Optional[Mapping[str, str]]) -> QueryAnswer:
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd="/",  # Python loads what `-c` and `-m` import from here first: not from a checkout
            start_new_session=True,  # so that a child of the program, which keeps the pipe open, can be ended with it
        )
    except OSError as error:
        return _output(None, b"", ("%s: %s" % (argv[0], error.strerror)).encode())
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        return _output(None, b"", ("no answer from %s within %g s" % (argv[0], timeout)).encode())
    except BaseException:
        _kill(process)
        raise
    return _output(process.returncode, out, err)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Without much waiting: a program that hangs in its driver cannot be killed either."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        pass


def _output(code: Optional[int], out: bytes, err: bytes) -> QueryAnswer:
    out, err = out[-MAX_BYTES:], err[-MAX_BYTES:]
    return QueryAnswer(code, out.decode(errors="replace"), err.decode(errors="replace"))
