"""Questions put to programs of this host, all at once, each in a session of its own and for a bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any, Dict, Mapping, Optional, Sequence

REAP = 1.0  # seconds for a killed program to be gone
Answers = Dict[str, Dict[str, Any]]
LONGEST = 1 << 20  # bytes of an answer that are kept, its last ones


def ask(questions: Mapping[str, Sequence[str]], timeout: float) -> Answers:
    """name → {code, out, err}. `code` is None for a program that is not there, or that did not answer within `timeout`
    seconds; `err` says which."""
    answers: Answers = {}
    threads = [
        threading.Thread(target=_put, args=(name, argv, timeout, answers), daemon=True)
        for name, argv in questions.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: answers[name] for name in questions}


def _put(name: str, argv: Sequence[str], timeout: float, answers: Answers) -> None:
    answers[name] = _answer(argv, timeout)


def _answer(argv: Sequence[str], timeout: float) -> Dict[str, Any]:
    try:
        asked = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that a child of the program, which keeps the pipe open, can be ended with it
        )
    except OSError as error:
        return _said(None, b"", ("%s: %s" % (argv[0], error.strerror)).encode())
    try:
        out, err = asked.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(asked)
        return _said(None, b"", ("no answer from %s within %g s" % (argv[0], timeout)).encode())
    except BaseException:
        _end(asked)
        raise
    return _said(asked.returncode, out, err)


def _end(asked: subprocess.Popen[bytes]) -> None:
    """Without much waiting: a program that hangs in its driver cannot be killed either."""
    try:
        os.killpg(asked.pid, signal.SIGKILL)
    except OSError:
        pass
    for pipe in (asked.stdout, asked.stderr):
        if pipe is not None:
            pipe.close()
    try:
        asked.wait(REAP)
    except subprocess.TimeoutExpired:
        pass


def _said(code: Optional[int], out: bytes, err: bytes) -> Dict[str, Any]:
    out, err = out[-LONGEST:], err[-LONGEST:]
    return {"code": code, "out": out.decode(errors="replace"), "err": err.decode(errors="replace")}
