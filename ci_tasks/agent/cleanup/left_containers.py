"""Removes containers that earlier runs of this home could not, since their daemon did not answer.

The next run on the host does it, as soon as the daemon answers: a container that goes on keeps its GPUs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Dict, List

from .. import liveness, processes, run_directory
from ..agent_log import log_traceback
from ..containers.run_containers import LABEL_DIR, RunContainer, RunContainers, is_container_problem


def remove_left_containers(run_dir: str) -> None:
    """Remove the containers of ended runs beside `run_dir`, unless somebody asked to keep them.

    Nothing else of those runs is removed, since their jobs could write into their plans."""
    try:
        for other, containers in _by_run(run_dir).items():
            _remove(run_directory.RunDir(other), containers)
    except Exception as error:  # another run's remains must not disturb this one
        log_traceback(run_dir, "containers of earlier runs", error)


def _by_run(run_dir: str) -> Dict[str, List[RunContainer]]:
    """The containers of other runs of the same home."""
    own = run_directory.RunDir(run_dir).path
    home = os.path.dirname(os.path.dirname(own))
    runs: Dict[str, List[RunContainer]] = {}
    for container in RunContainers(run_dir).find_of_any_run():
        other = container.labels.get(LABEL_DIR, "")
        if other != own and os.path.dirname(os.path.dirname(other)) == home:
            runs.setdefault(other, []).append(container)
    return runs


def _remove(paths: run_directory.RunDir, containers: List[RunContainer]) -> None:
    status = run_directory.read_status_if_readable(paths)
    if not status.has_ended or status.kept is not None or liveness.is_held(paths.path) or processes.alive(status):
        return  # it goes on, or its agent waits for the daemon, too
    answer = containers[0].client.run("rm", "--force", "--volumes", "--", *[container.id for container in containers])
    if answer.code == 0:
        left = tuple(line for line in status.left if not is_container_problem(line))
        run_directory.write_record(paths.status, replace(status, sequence=status.sequence + 1, left=left))
