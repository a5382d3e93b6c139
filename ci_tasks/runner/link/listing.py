"""The runs that this host keeps: what a client needs to find one again, and to say what was left."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List

from .. import layout, process
from ..slurm import job as slurm_job


def runs(home: str) -> List[Dict[str, Any]]:
    """Every run of the host's home: {dir, id, label, row, state, alive, kept, started_at, ended_at}; its state is
    `planned` before it has begun."""
    found = [_told(path) for path in sorted(_run_dirs(os.path.join(home, "runs")))]
    _ask_slurm([run for run in found if run["state"] == layout.STATE_RUNNING])
    return found


def _ask_slurm(running: List[Dict[str, Any]]) -> None:
    """Whether those that are Slurm's jobs are alive, only Slurm can say; while it does not, they are."""
    jobs = {run["dir"]: slurm_job.read(run["dir"]) for run in running}
    ids = [job.id for job in jobs.values() if job is not None and job.id]
    if not ids:
        return
    from ..slurm.squeue import Queue

    queue = Queue()
    known = queue.look(ids)
    for run in running:
        job = jobs[run["dir"]]
        if job is not None and job.id:
            run["alive"] = bool(queue.problem) or (job.id in known and not known[job.id].is_over)


def _run_dirs(top: str) -> Iterator[str]:
    for directory, names, files in os.walk(top):
        # One that was half removed, or half made, may have lost what says what it is; but not its number.
        numbered = os.path.basename(directory).isdigit() and os.path.dirname(os.path.dirname(directory)) == top
        if numbered or "plan.json" in files or "run.sh" in files:
            names[:] = []
            yield directory


def _told(path: str) -> Dict[str, Any]:
    run = layout.RunDir(path)
    plan, status = _read(run.plan), _read(run.status)
    return {
        "dir": path,
        "id": plan.get("id") or os.path.join(*path.split(os.sep)[-2:]),
        "label": plan.get("label"),
        "row": plan.get("row"),
        "state": status.get("state", "planned"),
        "alive": process.alive(status),
        "kept": status.get("kept"),
        "started_at": status.get("started_at"),
        "ended_at": status.get("ended_at"),
    }


def _read(path: str) -> Dict[str, Any]:
    try:
        return layout.read_json(path)
    except (OSError, ValueError):
        return {}
