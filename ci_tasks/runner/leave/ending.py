"""Ending a run from outside: asking its runner, or doing its work where the runner is gone."""

from __future__ import annotations

import json
import os
import signal
import time

from .. import layout, process, supervise
from ..docker import containers
from ..slurm import job as slurm_job

HEARING = 1.0  # seconds that a runner gets to notice that its job is to be killed
_GLANCE = 0.02


class EndingError(Exception):
    """A run that cannot be ended from here."""


def cancel(run_dir: str) -> None:
    """Ask the runner to end its job. A runner that is gone cannot: then what it left is ended here."""
    if _is_slurms(run_dir, kill=False):
        return
    paths = layout.RunDir(run_dir)
    status = layout.read_json(paths.status)
    if process.alive(status):
        try:
            os.kill(status["pid"], signal.SIGTERM)
            return
        except ProcessLookupError:
            status = layout.read_json(paths.status)  # it ended this moment
        except OSError as error:
            raise EndingError(
                "the runner, process %s, cannot be told to stop: %s" % (status["pid"], error.strerror)
            ) from None
    if status.get("state") != layout.STATE_ENDED:
        patience = supervise.patience(layout.read_json(paths.plan))
        process.end_all(paths.path, process.orphaned_group(status, paths.path), patience)
        containers.remove(paths.path)


def kill(run_dir: str) -> None:
    """End everything of the run now, without patience. Its runner hears of it first: else it would take the job's death
    for an end of its own, and the row for failed."""
    if _is_slurms(run_dir, kill=True):
        return
    paths = layout.RunDir(run_dir)
    status = layout.read_json(paths.status)
    if not process.alive(status):
        process.kill_all(paths.path, process.orphaned_group(status, paths.path))
        return
    try:
        os.kill(status["pid"], signal.SIGTERM)
    except OSError:
        pass
    deadline = time.monotonic() + HEARING
    while not _is_cancelling(paths) and process.alive(status) and time.monotonic() < deadline:
        time.sleep(_GLANCE)
    process.kill_all(paths.path, status.get("group"))


def _is_slurms(run_dir: str, kill: bool) -> bool:
    """Whether the run is a job of Slurm's, which then is told."""
    job = slurm_job.read(run_dir)
    if job is None:
        return False
    from ..slurm import ending

    try:
        if kill:
            ending.kill(run_dir, job)
        else:
            ending.cancel(run_dir, job, supervise.patience(layout.read_json(layout.RunDir(run_dir).plan)))
    except ending.SlurmRefused as refusal:
        raise EndingError("Slurm does not end it: %s" % refusal) from None
    return True


def _is_cancelling(run: layout.RunDir) -> bool:
    try:
        with open(run.events, encoding="utf-8") as source:
            return any(json.loads(line)["event"] == layout.END_CANCELLED for line in source if line.endswith("\n"))
    except (OSError, ValueError):
        return False
