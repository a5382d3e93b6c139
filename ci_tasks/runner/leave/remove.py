"""Removing a run and all that it left on this host, whatever became of its runner."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List, Optional

from .. import layout, process, supervise
from ..docker.containers import Containers, read_plan
from . import closing, ending
from .trees import remove_tree

__all__ = ["remove_left", "remove_run", "remove_tree"]

CLOSING = 120.0  # seconds that a runner gets, beside its patience, to collect and to remove
_GLANCE = 0.05


def remove_run(run_dir: str) -> List[str]:
    """Remove all that the run left, and its run directory. Returns what is left and why.

    While containers may be left, as where a daemon is away, the directory stays: it is what leads to them."""
    paths = layout.RunDir(run_dir)
    plan = read_plan(paths)
    containers, left, image = _remove_left(paths, plan)
    if containers:
        return containers + left + ["%s: kept until its containers are gone" % paths.path]
    return left + remove_tree(paths.path, image, *closing.daemon_of(plan))


def remove_left(run_dir: str) -> List[str]:
    """End what is left of the run; remove its containers and the directories that it owns. Log and status stay. Returns
    what is left and why."""
    paths = layout.RunDir(run_dir)
    containers, left, _ = _remove_left(paths, read_plan(paths))
    return containers + left


def _remove_left(paths: layout.RunDir, plan: Dict[str, Any]) -> "tuple[List[str], List[str], Optional[str]]":
    """What containers are left and why, what else is, and an image that is here for certain."""
    _end(paths, plan)
    containers = Containers(paths.path, thorough=True)
    image = closing.image_of(containers.find(), plan)
    return containers.remove(), closing.remove_owned(paths, plan, image), image


def _end(paths: layout.RunDir, plan: Dict[str, Any]) -> None:
    """Its runner does that best; one that hangs is killed."""
    status = _status(paths)
    try:
        ending.cancel(paths.path)
    except (OSError, ValueError, ending.EndingError):
        pass
    deadline = time.monotonic() + supervise.patience(plan) + CLOSING
    while process.alive(status) and time.monotonic() < deadline:
        time.sleep(_GLANCE)
    if process.alive(status):
        os.kill(status["pid"], signal.SIGKILL)
    process.kill_all(paths.path, process.orphaned_group(_status(paths), paths.path))


def _status(paths: layout.RunDir) -> Dict[str, Any]:
    try:
        return layout.read_json(paths.status)
    except (OSError, ValueError):
        return {}
