"""Cancelling and killing a run from outside: by its agent, by Slurm, or here where the agent has died."""

from __future__ import annotations

import os
import signal
import time

from .. import liveness, processes, run_directory
from ..containers import run_containers
from ..files import content_of
from ..records import Status, read_events
from ..slurm import job_file as slurm_job
from .lost_run import record_cleanup

NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
_POLL_SECONDS = 0.02
_MOST_EVENTS = 1 << 22  # bytes; the job can write there too


class CancelError(Exception):
    """A run that cannot be cancelled from here."""


def cancel(run_dir: str) -> None:
    """Ask the agent to cancel its job; where it has died, stop what it left. Raises CancelError."""
    if _cancel_slurm_job(run_dir, kill=False):
        return
    paths = run_directory.RunDir(run_dir)
    status = liveness.read_agent_status(paths)
    if processes.alive(status):
        try:
            _request_stop(status)
            return
        except ProcessLookupError:
            status = liveness.read_agent_status(paths)  # it ended this moment
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
    status = liveness.read_agent_status(paths)
    if not processes.alive(status):
        processes.kill_all(paths.path, processes.orphaned_group(status, paths.path))
        return
    try:
        _request_stop(status)
    except OSError:
        pass
    deadline = time.monotonic() + NOTICE_SECONDS
    while not _is_cancelling(paths) and processes.alive(status) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    processes.kill_all(paths.path, status.group)


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


def _request_stop(status: Status) -> None:
    """SIGTERM to an agent that is alive. Raises OSError."""
    assert status.pid is not None
    os.kill(status.pid, signal.SIGTERM)


def _is_cancelling(run: run_directory.RunDir) -> bool:
    text = content_of(run.events, _MOST_EVENTS).decode("utf-8", "replace")
    return any(event.event == run_directory.END_CANCELLED for event in read_events(text))
