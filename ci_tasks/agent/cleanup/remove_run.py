"""Removes a run and everything it left on this host, whether its agent lives or not."""

from __future__ import annotations

import time
from typing import List, Optional

from .. import liveness, process_tree, processes, run_directory
from ..containers.kept import remove_images
from ..containers.run_containers import RunContainers, read_plan
from ..records import Plan
from . import cancel as cancel_run
from . import end_of_run
from .remove_tree import remove_tree

CLEANUP_SECONDS = 120.0  # an agent gets so long after the grace period to collect and to remove
_POLL_SECONDS = 0.05


def remove_run(run_dir: str) -> List[str]:
    """Remove everything that the run left, and its run directory. Returns a line for each thing that
    could not be removed.

    While containers may be left, as where docker does not answer, the directory stays: it leads to them."""
    paths = run_directory.RunDir(run_dir)
    plan = read_plan(paths)
    containers, image = _remove_containers(paths, plan)
    if containers:
        return containers + ["%s: kept until its containers are gone" % paths.path]
    return remove_tree(paths.path, image, *end_of_run.runtime_of(plan))


def end_and_clean(run_dir: str) -> List[str]:
    """Stop what is left of the run; remove its containers and its workspace. Log and status stay.
    Returns a line for each thing that could not be removed."""
    paths = run_directory.RunDir(run_dir)
    plan = read_plan(paths)
    containers, image = _remove_containers(paths, plan)
    return containers + remove_tree(paths.workspace, image, *end_of_run.runtime_of(plan))


def _remove_containers(paths: run_directory.RunDir, plan: Plan) -> "tuple[List[str], Optional[str]]":
    """End the run. Returns problems with its containers, and an image that the host has.

    An agent that has stayed after the end goes on waiting for its container daemon, as long as that does not answer."""
    status = run_directory.read_status_if_readable(paths)
    containers = RunContainers(paths.path, thorough=True)
    has_ended = status.has_ended and not liveness.is_held(paths.path)
    if not has_ended:
        _cancel_and_wait(paths, plan)
    elif status.daemon_silent_seconds:
        containers.expect_no_answer()
    found = containers.find()
    image = end_of_run.image_of(found, plan)
    left = containers.remove()
    if has_ended and not left:
        _cancel_and_wait(paths, plan)
    return left or remove_images(found), image


def _cancel_and_wait(paths: run_directory.RunDir, plan: Plan) -> None:
    """Cancel the run through its agent, and kill an agent that hangs."""
    status = liveness.read_agent_status(paths)
    try:
        cancel_run.cancel(paths.path)
    except (OSError, ValueError, cancel_run.CancelError):
        pass
    deadline = time.monotonic() + plan.grace_seconds + CLEANUP_SECONDS
    while processes.alive(status) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if processes.alive(status):
        assert status.pid is not None  # it is alive
        process_tree.kill_tree(status.pid)
    processes.kill_all(paths.path, processes.orphaned_group(run_directory.read_status_if_readable(paths), paths.path))
