"""Ends runs from outside: by their agents, by Slurm, or here if the agent has died; and removes what they left on this
host. So does the next run with containers of earlier runs, whose daemon did not answer at their end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

from .. import liveness, processes, run_directory
from ..agent_log import log_traceback
from ..containers import run_containers
from ..containers.kept import remove_images
from ..containers.run_containers import LABEL_DIR, RunContainer, RunContainers, is_container_problem, read_plan
from ..files import content_of
from ..records import Plan
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
        processes.stop_all(paths.path, group, read_plan(paths).grace_seconds)
        liveness.record_cleanup(paths, found, run_containers.remove(paths.path))


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
    from ..slurm import session as slurm

    try:
        if kill:
            slurm.kill(run_dir, job)
        else:
            slurm.cancel(run_dir, job, run_directory.read_plan(run_directory.RunDir(run_dir)).grace_seconds)
    except slurm.ScancelError as error:
        raise CancelError("Slurm did not cancel it: %s" % error) from None
    return True


def remove_run(run_dir: str) -> List[str]:
    """End the run and remove everything that it left, and its run directory. Returns a line for each thing that
    could not be removed.

    While containers may be left, as if docker does not answer, the directory stays: it leads to them."""
    paths = run_directory.RunDir(run_dir)
    containers, left = _remove(paths, paths.path)
    return containers + ["%s: kept until its containers are gone" % paths.path] if containers else left


def end_and_clean(run_dir: str) -> List[str]:
    """End the run; remove its containers and its workspace. Log and status stay. Returns a line for each thing that
    could not be removed."""
    paths = run_directory.RunDir(run_dir)
    containers, left = _remove(paths, paths.workspace)
    return containers + left


def remove_left_containers(run_dir: str) -> None:
    """Remove the containers of ended runs of the same home, unless they are kept on purpose: one that goes on keeps its
    GPUs. Nothing else of those runs is removed, since their jobs could write into their plans."""
    own = run_directory.RunDir(run_dir).path
    home = os.path.dirname(os.path.dirname(own))
    others: Dict[str, List[RunContainer]] = {}
    try:
        for container in RunContainers(run_dir).find_of_any_run():
            other = container.labels.get(LABEL_DIR, "")
            if other != own and os.path.dirname(os.path.dirname(other)) == home:
                others.setdefault(other, []).append(container)
        for other, containers in others.items():
            _remove_left(run_directory.RunDir(other), containers)
    except Exception as error:  # another run's remains must not disturb this one
        log_traceback(run_dir, "containers of earlier runs", error)


def _remove_left(paths: run_directory.RunDir, containers: List[RunContainer]) -> None:
    status = run_directory.read_status_if_readable(paths)
    if not status.has_ended or status.kept is not None or liveness.is_held(paths.path) or processes.alive(status):
        return  # it goes on, or its agent waits for the daemon, too
    answer = containers[0].client.run("rm", "--force", "--volumes", "--", *[container.id for container in containers])
    if answer.code == 0:
        left = tuple(line for line in status.left if not is_container_problem(line))
        run_directory.write_record(paths.status, replace(status, sequence=status.sequence + 1, left=left))


def _remove(paths: run_directory.RunDir, directory: str) -> Tuple[List[str], List[str]]:
    """End the run, remove its containers and then `directory`. Returns problems with its containers, and others.

    An agent that has stayed after the end goes on waiting for its container daemon, as long as that does not answer."""
    plan = read_plan(paths)
    status = run_directory.read_status_if_readable(paths)
    containers = RunContainers(paths.path, thorough=True)
    has_ended = status.has_ended and not liveness.is_held(paths.path)
    if not has_ended:
        _cancel_and_wait(paths, plan)
    elif status.daemon_silent_seconds:
        containers.expect_no_answer()
    found = containers.find()
    image: Optional[str] = end_of_run.image_of(found, plan)
    left = containers.remove()
    if has_ended and not left:
        _cancel_and_wait(paths, plan)
    left = left or remove_images(found)
    return left, [] if left and directory == paths.path else remove_tree(directory, image, *end_of_run.runtime_of(plan))


def _cancel_and_wait(paths: run_directory.RunDir, plan: Plan) -> None:
    """Cancel the run through its agent, and kill an agent that hangs."""
    status = run_directory.read_status_if_readable(paths)
    with suppress(OSError, ValueError, CancelError):
        cancel(paths.path)
    deadline = time.monotonic() + plan.grace_seconds + CLEANUP_SECONDS
    while processes.alive(status) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if status.pid is not None and processes.alive(status):
        processes.kill_tree(status.pid)
    processes.kill_all(paths.path, processes.orphaned_group(run_directory.read_status_if_readable(paths), paths.path))
