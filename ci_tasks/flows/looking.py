"""`runs`, `logs` and `cancel`: looking at runs that exist. The run directory is the truth; this only reads it."""

from __future__ import annotations

import time
from typing import Any

from ci_tasks.errors import UsageError
from ci_tasks.flows.view import copy_from
from ci_tasks.hosts import local
from ci_tasks.runner.layout import RunDir
from ci_tasks.runs import store
from ci_tasks.runs.record import load


def list_runs(limit: int) -> list[dict[str, Any]]:
    """The newest runs' records."""
    return [load(run) for _, (_, run) in zip(range(limit), store.run_dirs(), strict=False)]


def show_log(name: str, follow: bool) -> int:
    """Copy a run's log to standard output, byte for byte; with `follow` until the run has ended."""
    run = _one(name)
    offset = copy_from(run.log, 0)
    while follow and not local.ended(run):
        time.sleep(0.1)
        offset = copy_from(run.log, offset)
    copy_from(run.log, offset)
    return 0


def cancel(name: str) -> list[str]:
    """End the runs that `name` means, with everything they started. Returns the ids of those that were running."""
    found = [(id, run) for id, run in store.find(name) if local.status(run) and not local.ended(run)]
    for _, run in found:
        local.cancel(run)
    for _, run in found:
        while not local.ended(run):
            time.sleep(0.05)
        load(run)
    return [id for id, _ in found]


def _one(name: str) -> RunDir:
    found = store.find(name)
    if len(found) > 1:
        raise UsageError(f"{name!r} means {len(found)} runs", hint="one of: " + ", ".join(id for id, _ in found))
    return found[0][1]
