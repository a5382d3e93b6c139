"""Cleanup after a run's last process: collect its artifacts, then remove what it left on the host, or keep it.

Nothing here changes how the run ended, and nothing may keep the run from ending: what hangs is left behind.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Callable, List, Mapping, Optional, Tuple, TypeVar

from .. import processes
from ..agent_log import log_traceback
from ..artifacts import collect
from ..containers.kept import remove_images
from ..containers.run_containers import RunContainer, RunContainers
from ..exit_gate import mask_run
from ..job_environment import secret_values
from ..probe.evidence import collect_evidence
from ..quick_dataclass import dataclass
from ..records import Kept, Plan
from ..run_directory import RunDir
from ..trees.git import StoreError
from ..trees.workspace import release, slot_of
from .environment_snapshot import EnvironmentSnapshot
from .remove_tree import make_readable, remove_tree, take_ownership

MAX_SECONDS = 900.0  # for everything: a kernel that holds a process, or a file system that is gone, never answers

T = TypeVar("T")


@dataclass(frozen=True)
class CleanupResult:
    """For status.json: what was kept on purpose, a line for each thing that could not be removed, and whether secrets
    are masked in all that leaves the host."""

    kept: Optional[Kept] = None
    left: Tuple[str, ...] = ()
    masked: bool = False


class RunCleanup:
    """What is still to be done for a run when its processes have ended."""

    def __init__(self, paths: RunDir, plan: Plan, stop_requested: Callable[[], bool] = lambda: False) -> None:
        self.paths, self.plan, self.began = paths, plan, time.time()
        self._stop_requested = stop_requested
        self.containers = RunContainers(paths.path)
        self.left_containers = False  # some may be left, since the daemon did not answer
        self._problems: List[str] = []
        self.environment = EnvironmentSnapshot(paths.path)
        self._directory = os.path.realpath(paths.path)

    def finish(self, succeeded: bool) -> CleanupResult:
        """Collect artifacts, then remove or keep the rest."""
        try:
            containers = self.containers.find()
            masked = not self._leads_elsewhere() and self._collect(containers)
            if self.plan.keep and not succeeded:
                kept = Kept(tuple(container.name for container in containers), self.plan.workspace)
                return CleanupResult(kept, tuple(self._problems), masked)
            return CleanupResult(left=self._remove(containers), masked=masked)
        except Exception as error:  # whatever it is, the run has ended
            log_traceback(self.paths.path, "cleanup", error)
            return CleanupResult(left=("not everything was removed: %r" % error,))

    def retry(self) -> Tuple[str, ...]:
        """Remove what `finish` could not. Returns a line for each thing that is still left, or was not collected."""
        return self._remove(self.containers.find())

    def _collect(self, containers: List[RunContainer]) -> bool:
        """Collect what leaves the host. Returns whether secrets are masked in it."""
        if self.containers.problems:
            self._problems = ["the artifacts in containers are not collected"]
        self.environment.finish(containers)
        root, secrets = root_container(containers, self.plan), secret_values(self.plan)
        self._problems += collect(self.paths, self.plan, containers, self.began)
        make_readable(self.paths.artifacts, *root)
        problem = "the evidence of its processes is not complete"
        try:
            if self.plan.probe is not None:
                collect_evidence(self.paths, secrets)
            problem = "secrets are not masked yet"
            unmasked = mask_run(self.paths, secrets, self._stop_requested)
        except (OSError, ValueError) as error:
            self._problems.append("%s: %s" % (problem, error))
            return False
        self._problems += remove_tree(unmasked, *root) if unmasked else []
        return True

    def _remove(self, containers: List[RunContainer]) -> Tuple[str, ...]:
        root = root_container(containers, self.plan)
        left = self.containers.remove()
        if self.plan.retry is not None and not left:
            left = remove_images(containers)
        self.left_containers = bool(left)
        if self._leads_elsewhere():
            left.append("%s leads elsewhere now: nothing below it is removed" % self.paths.path)
            return (*self._problems, *left)
        if not left and not self.plan.keeps_workspace:
            self._release_workspace(root)
        # A run's own workspace is in its directory, whatever a plan names: a job can write what it likes into that.
        workspace = [] if self.plan.keeps_workspace else [self.paths.workspace]
        for path in (os.path.join(self.paths.path, "tmp"), self.paths.evidence, *workspace):
            left += remove_tree(path, *root)
        return (*self._problems, *left)

    def _leads_elsewhere(self) -> bool:
        """Whether a job put something else in the place of its run directory."""
        return os.path.realpath(self.paths.path) != self._directory

    def _release_workspace(self, root: "RootContainer") -> None:
        """Let another run have the workspace, unless something of the job's still exists that may write into it."""
        slot = slot_of(self.paths.workspace)
        if os.path.isdir(slot) and not processes.of_job(os.getpid()):
            take_ownership(self.paths.workspace, *root)
            with suppress(OSError, StoreError):  # then it is removed
                release(self.paths.workspace, self.plan.checkout.path)


RootContainer = Tuple[Optional[str], str, Mapping[str, str]]


def root_container(containers: List[RunContainer], plan: Plan) -> RootContainer:
    """What a container that is root in the run's files needs: an image that the host has, or else the plan's, the
    runtime, and the environment of its client."""
    pinned = plan.container.image if plan.container is not None else {}
    planned = pinned.get(plan.image, plan.image) if plan.image is not None else None
    image = next((container.image_id for container in containers if container.image_id), planned)
    return image, plan.container_runtime or "none", {**os.environ, **plan.host_env}


def call_with_heartbeat(work: Callable[[], T], heartbeat: Callable[[], object], every: float) -> Optional[T]:
    """The result of `work`, while `heartbeat` is called every `every` seconds. None if it raises or takes longer
    than MAX_SECONDS."""
    results: List[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    until = time.monotonic() + MAX_SECONDS
    while thread.is_alive() and time.monotonic() < until:
        thread.join(every)
        if thread.is_alive():
            heartbeat()
    return results[0] if results else None
