"""Lists the runs that this host keeps."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Iterator, List

from .. import liveness, run_directory
from ..files import UnsafeName
from ..slurm import job_file as slurm_job
from .messages import RunSummary


def runs(home: str) -> List[RunSummary]:
    """Every run below `home`, with `alive` of Slurm jobs as squeue has it; while that fails, they count as alive."""
    runs = []
    for path in sorted(_run_dirs(os.path.join(home, "runs"))):
        with suppress(UnsafeName):  # a directory that a job has made: no run is called so
            runs.append(_summary(path))
    running = [run.dir for run in runs if run.state == run_directory.STATE_RUNNING]
    jobs = {path: job.id for path in running for job in [slurm_job.read(path)] if job is not None and job.id}
    if not jobs:
        return runs
    from ..slurm.session import may_run

    alive = may_run(list(jobs.values()))
    return [replace(run, alive=alive[jobs[run.dir]] if run.dir in jobs else run.alive) for run in runs]


def _run_dirs(top: str) -> Iterator[str]:
    for directory, names, files in os.walk(top):
        # One that is half removed or half created may lack these files, but has its number.
        numbered = os.path.basename(directory).isdigit() and os.path.dirname(os.path.dirname(directory)) == top
        if numbered or "plan.json" in files or "run.sh" in files:
            names[:] = []
            yield directory


def _summary(path: str) -> RunSummary:
    run = run_directory.RunDir(path)
    status = run_directory.read_status_if_readable(run)
    return RunSummary(
        dir=path,
        state=status.state,
        # An agent may stay after the end, to remove what its container daemon does not let go.
        alive=liveness.is_alive(run, status),
        kept=status.kept is not None,
        started_at=status.started_at,
        ended_at=status.ended_at,
    )
