"""Cancelling and killing a run from outside: by its agent, by Slurm, or here if the agent has died."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from .. import processes, run_directory
from ..containers import run_containers
from ..files import content_of
from ..slurm import job_file as slurm_job
from .lost_run import record_cleanup

NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
_POLL_SECONDS = 0.02


class CancelError(Exception):
    """A run that cannot be cancelled from here."""


def cancel(run_dir: str) -> None:
    """Ask the agent to cancel its job; if it has died, stop what it left. Raises CancelError."""
    if _cancel_slurm_job(run_dir, kill=False):
        return
    paths = run_directory.RunDir(run_dir)
    status = run_directory.read_status_if_readable(paths)
    if status.pid is not None and processes.alive(status):
        try:
            os.kill(status.pid, signal.SIGTERM)
            return
        except ProcessLookupError:
            status = run_directory.read_status_if_readable(paths)  # it ended this moment
        except OSError as error:
            raise CancelError("the agent, process %s, cannot be signalled: %s" % (status.pid, error.strerror)) from None
    if not status.has_ended or status.gone:
        group = processes.orphaned_group(status, paths.path)
        found = len(processes.of_run(paths.path, group))
        processes.stop_all(paths.path, group, run_containers.read_plan(paths).grace_seconds)
        record_cleanup(paths, found, run_containers.remove(paths.path))


def kill(run_dir: str) -> None:
    """Kill everything of the run, without a grace period. Its agent is signalled first: otherwise it would take the
    job's death for its own end, and the row would count as failed. Raises CancelError."""
    if _cancel_slurm_job(run_dir, kill=True):
        return
    paths = run_directory.RunDir(run_dir)
    status = run_directory.read_status_if_readable(paths)
    group = processes.orphaned_group(status, paths.path)
    if status.pid is not None and processes.alive(status):
        group = status.group
        with suppress(OSError):
            os.kill(status.pid, signal.SIGTERM)
        deadline = time.monotonic() + NOTICE_SECONDS
        while processes.alive(status) and time.monotonic() < deadline:
            if b'"cancelled"' in content_of(paths.events):
                break
            time.sleep(_POLL_SECONDS)
    processes.kill_all(paths.path, group)


def _cancel_slurm_job(run_dir: str, kill: bool) -> bool:
    """Whether the run is a Slurm job, which then is cancelled."""
    job = slurm_job.read(run_dir)
    if job is None:
        return False
    from ..slurm import cancel as cancel_run

    try:
        if kill:
            cancel_run.kill(run_dir, job)
        else:
            cancel_run.cancel(run_dir, job, run_directory.read_plan(run_directory.RunDir(run_dir)).grace_seconds)
    except cancel_run.ScancelError as error:
        raise CancelError("Slurm did not cancel it: %s" % error) from None
    return True
