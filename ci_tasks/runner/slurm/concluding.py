"""Putting on record how a run ended that its runner could not, or not rightly, say: a line in its log, and its status.

Nothing of the run is at work any more: Slurm has said so, or the cluster never had it.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict

from .. import layout
from ..code.objects import locked
from . import job as jobs
from .fate import Fate, fate, is_sure
from .states import State

_PATIENCE = 20.0
_CHUNK = 1 << 20
_LAST = 4096


def conclude(run_dir: str, state: State) -> Dict[str, Any]:
    """Let Slurm's word decide about a run. Returns its status, which is sure from now on."""
    job = jobs.read(run_dir)
    said = last_line(job.output) if job is not None else ""
    return _settle(run_dir, lambda status: fate(state, status, said))


def conclude_as(run_dir: str, ended: Fate) -> Dict[str, Any]:
    """The same for one that never was in Slurm's hands."""
    return _settle(run_dir, lambda status: ended)


def _settle(run_dir: str, decide: Any) -> Dict[str, Any]:
    paths = layout.RunDir(run_dir)
    with locked(jobs.lock_of(run_dir), True, _PATIENCE):
        status = layout.read_json(paths.status)
        if is_sure(status):
            return status
        ended = decide(status)
        if ended is not None:
            _say(paths.log, ended.line)
            status = {**status, **_end(ended, paths.log)}
        status["concluded"] = True
        layout.write_json(paths.status, status)
    jobs.forget_secrets(run_dir)
    return status


def _end(ended: Fate, log: str) -> Dict[str, Any]:
    digest, size = _digest(log)
    return {
        "state": layout.STATE_ENDED,
        "phase": layout.STATE_ENDED,
        "end": ended.end,
        "exit_code": ended.exit_code,
        "error": ended.sentence,
        "ended_at": time.time(),
        "log_bytes": size,
        "log_sha256": digest,
        "waiting": [],
    }


def _say(log: str, line: str) -> None:
    """A line of its own, whatever stands before it."""
    with os.fdopen(os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "rb+") as out:
        if out.seek(0, os.SEEK_END):
            out.seek(-1, os.SEEK_END)
            if out.read(1) != b"\n":
                out.write(b"\n")
        out.write((" ".join(line.split()) + "\n").encode("utf-8", "backslashreplace"))


def _digest(log: str) -> "tuple[str, int]":
    digest, size = hashlib.sha256(), 0
    with open(log, "rb") as source:
        while True:
            chunk = source.read(_CHUNK)
            if not chunk:
                return digest.hexdigest(), size
            digest.update(chunk)
            size += len(chunk)


def last_line(path: str) -> str:
    try:
        with open(path, "rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _LAST))
            lines = [line.strip() for line in source.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1] if lines else ""
