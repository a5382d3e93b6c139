"""Ends runs from outside: by their agents, by Slurm, or here if the agent has died; and removes what they left on this
host. So does the next run with containers of earlier runs, whose daemon did not answer at their end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import List

from .. import liveness, processes
from .. import run_directory as rd
from ..agent_log import log_traceback
from ..containers.kept import remove_images
from ..containers.run_containers import RunContainer, RunContainers, is_container_problem, read_plan
from ..files import content_of
from ..records import Plan, Status
from ..slurm import job_file as slurm_job
from . import end_of_run
from .remove_tree import remove_tree

NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
CLEANUP_SECONDS = 120.0  # an agent gets so long after the grace period to collect and to remove
_POLL_SECONDS = 0.05


class CancelError(Exception):
    """A run that cannot be cancelled from here."""


def cancel(run_dir: str) -> None:
    """Ask the agent to cancel its job; if it has died, stop what it left. Raises CancelError."""
    paths = rd.RunDir(run_dir)
    if _cancel_slurm_job(paths, kill=False) or _signal_agent(paths, rd.read_status_if_readable(paths)):
        return
    status = rd.read_status_if_readable(paths)  # it may have ended this moment
    if not status.has_ended or status.gone:
        group = processes.orphaned_group(status, paths.path)
        found = len(processes.of_run(paths.path, group))
        processes.stop_all(paths.path, group, read_plan(paths).grace_seconds)
        liveness.record_cleanup(paths, found, RunContainers(paths.path).remove())


def kill(run_dir: str) -> None:
    """Kill everything of the run, without a grace period. Its agent is signalled first: otherwise it would take the
    job's death for its own end, and the row would count as failed. Raises CancelError."""
    paths = rd.RunDir(run_dir)
    if _cancel_slurm_job(paths, kill=True):
        return
    status = rd.read_status_if_readable(paths)
    group = processes.orphaned_group(status, paths.path)
    if _signal_agent(paths, status):
        group = status.group
        deadline = time.monotonic() + NOTICE_SECONDS
        while b'"cancelled"' not in content_of(paths.events) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    processes.kill_all(paths.path, group)


def _signal_agent(paths: rd.RunDir, status: Status) -> bool:
    """Whether an agent was asked to cancel its job. Raises CancelError."""
    if status.pid is None or not processes.alive(status):
        return False
    try:
        os.kill(status.pid, signal.SIGTERM)
        return True
    except ProcessLookupError:
        return False
    except OSError as error:
        raise CancelError("the agent, process %s, cannot be signalled: %s" % (status.pid, error.strerror)) from None


def _cancel_slurm_job(paths: rd.RunDir, kill: bool) -> bool:
    """Whether the run is a Slurm job, which then is cancelled."""
    job = slurm_job.read(paths.path)
    if job is None:
        return False
    from ..slurm import session as slurm

    try:
        if kill:
            slurm.kill(paths.path, job)
        else:
            slurm.cancel(paths.path, job, rd.read_plan(paths).grace_seconds)
    except slurm.ScancelError as error:
        raise CancelError("Slurm did not cancel it: %s" % error) from None
    return True


def remove_run(run_dir: str) -> List[str]:
    """End the run and remove everything that it left, and its run directory. Returns a line for each thing that
    could not be removed.

    While containers may be left, as if docker does not answer, the directory stays: it leads to them."""
    return _remove(rd.RunDir(run_dir), whole=True)


def end_and_clean(run_dir: str) -> List[str]:
    """End the run; remove its containers and its workspace. Log and status stay. Returns a line for each thing that
    could not be removed."""
    return _remove(rd.RunDir(run_dir), whole=False)


def _remove(paths: rd.RunDir, whole: bool) -> List[str]:
    plan, status = read_plan(paths), rd.read_status_if_readable(paths)
    containers = RunContainers(paths.path, thorough=True)
    has_ended = status.has_ended and not liveness.is_held(paths.path)
    if not has_ended:
        _cancel_and_wait(paths, plan)
    elif status.daemon_silent_seconds:
        containers.expect_no_answer()
    found = containers.find()
    left = containers.remove()
    if has_ended and not left:  # else an agent that has stayed goes on waiting for its daemon
        _cancel_and_wait(paths, plan)
    left = left or remove_images(found)
    if left and whole:
        return [*left, "%s: kept until its containers are gone" % paths.path]
    return left + remove_tree(paths.path if whole else paths.workspace, *end_of_run.root_container(found, plan))


def _cancel_and_wait(paths: rd.RunDir, plan: Plan) -> None:
    """Cancel the run through its agent, and kill an agent that hangs."""
    status = rd.read_status_if_readable(paths)
    with suppress(OSError, ValueError, CancelError):
        cancel(paths.path)
    deadline = time.monotonic() + plan.grace_seconds + CLEANUP_SECONDS
    while processes.alive(status) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if status.pid is not None and processes.alive(status):
        processes.kill_tree(status.pid)
    processes.kill_all(paths.path, processes.orphaned_group(rd.read_status_if_readable(paths), paths.path))


def remove_left_containers(run_dir: str) -> None:
    """Remove the containers of ended runs of the same home, unless they are kept on purpose: one that goes on keeps its
    GPUs. Nothing else of those runs is removed, since their jobs could write into their plans."""
    own = rd.RunDir(run_dir).path
    try:
        for container in RunContainers(run_dir).find_of_any_run():
            other = container.run_dir
            if other != own and os.path.dirname(os.path.dirname(other)) == os.path.dirname(os.path.dirname(own)):
                _remove_left(rd.RunDir(other), container)
    except Exception as error:  # another run's remains must not disturb this one
        log_traceback(run_dir, "containers of earlier runs", error)


def _remove_left(paths: rd.RunDir, container: RunContainer) -> None:
    status = rd.read_status_if_readable(paths)
    if not status.has_ended or status.kept is not None or liveness.is_held(paths.path) or processes.alive(status):
        return  # it goes on, or its agent waits for the daemon, too
    if container.client.run("rm", "--force", "--volumes", "--", container.id).code == 0:
        left = tuple(line for line in status.left if not is_container_problem(line))
        rd.write_record(paths.status, replace(status, sequence=status.sequence + 1, left=left))
