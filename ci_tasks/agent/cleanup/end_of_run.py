"""Cleanup after a run's last process: collect its artifacts, then remove what it left on the host, or keep it.

Nothing here changes how the run ended, and nothing may keep the run from ending: what hangs is left behind.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Callable, Dict, List, Optional, Tuple, TypeVar

from .. import process_tree, run_directory
from ..agent_log import log_traceback
from ..artifacts.collect import collect
from ..containers.kept import remove_images
from ..containers.run_containers import RunContainer, RunContainers, environment
from ..exit_gate import mask_run
from ..files import pin, pinned
from ..job_environment import secret_values
from ..probe.evidence import collect_evidence
from ..quick_dataclass import dataclass
from ..records import Kept, Plan
from ..trees.git import StoreError
from ..trees.idle import release, slot_of
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

    def __init__(
        self, paths: run_directory.RunDir, plan: Plan, stop_requested: Callable[[], bool] = lambda: False
    ) -> None:
        self.paths, self.plan, self.began = paths, plan, time.time()
        self._stop_requested = stop_requested
        self.containers = RunContainers(paths.path)
        self.left_containers = False  # some may be left, since the daemon did not answer
        self._problems: List[str] = []
        self.environment = EnvironmentSnapshot(paths.path)
        self._directory = os.path.realpath(paths.path)
        pin(paths.path)

    def expect_no_answer(self) -> None:
        """The container daemon hangs: wait for it no longer than needed."""
        self.containers.expect_no_answer()

    def stop(self) -> None:
        """End the run's containers. They and their files stay, for their logs."""
        self.containers.stop()

    def finish(self, succeeded: bool) -> CleanupResult:
        """Collect artifacts, then remove or keep the rest."""
        try:
            return self._finish(succeeded)
        except Exception as error:  # whatever it is, the run has ended
            log_traceback(self.paths.path, "cleanup", error)
            return CleanupResult(left=("not everything was removed: %r" % error,))

    def retry(self) -> Tuple[str, ...]:
        """Remove what `finish` could not. Returns a line for each thing that is still left, or was not collected."""
        return self._remove(self.containers.find())

    def _remove(self, containers: List[RunContainer]) -> Tuple[str, ...]:
        image = image_of(containers, self.plan)
        left = self.containers.remove()
        if self.plan.retry is not None and not left:
            left = remove_images(containers)
        self.left_containers = bool(left)
        if os.path.realpath(self.paths.path) != self._directory:
            left.append("%s leads elsewhere now: nothing below it is removed" % self.paths.path)
            return (*self._problems, *left)
        if not left and not self.plan.keeps_workspace:
            self._release_workspace(image)
        tmp = os.path.join(self.paths.path, "tmp")
        for path in (tmp, self.paths.evidence, *self._workspace()):
            left += remove_tree(path, image, *runtime_of(self.plan))
        return (*self._problems, *left)

    def _finish(self, succeeded: bool) -> CleanupResult:
        containers = self.containers.find()
        unanswered = ["the artifacts in containers are not collected"] if self.containers.problems else []
        self.environment.finish(containers)
        image, daemon = image_of(containers, self.plan), runtime_of(self.plan)
        own = run_directory.RunDir(pinned(self.paths.path))
        self._problems = unanswered + collect(own, self.plan, containers, self.began, failed=not succeeded)
        make_readable(self.paths.artifacts, image, *daemon)
        self._collect_evidence()
        masked = self._mask(image)
        if self.plan.keep and not succeeded:
            names = tuple(container.name for container in containers)
            return CleanupResult(Kept(names, self.plan.workspace), tuple(self._problems), masked)
        return CleanupResult(left=self._remove(containers), masked=masked)

    def _collect_evidence(self) -> None:
        """One file in the place of many; of a run that is kept, whose container needs the directory, both."""
        if self.plan.probe is None:
            return
        try:
            collect_evidence(run_directory.RunDir(pinned(self.paths.path)), secret_values(self.plan))
        except (OSError, ValueError) as error:
            self._problems.append("the evidence of its processes is not complete: %s" % error)

    def _mask(self, image: Optional[str]) -> bool:
        """Whether everything that is fetched is masked; what is not will be when it is fetched."""
        try:
            unmasked = mask_run(self.paths, secret_values(self.plan), self._stop_requested)
        except (OSError, ValueError) as error:
            self._problems.append("secrets are not masked yet: %s" % error)
            return False
        if unmasked:
            self._problems += remove_tree(unmasked, image, *runtime_of(self.plan))
        return True

    def _release_workspace(self, image: Optional[str]) -> None:
        """Let another run have the workspace, unless something of the job's is still there that may write into it."""
        slot = slot_of(self.paths.workspace, self.plan.checkout.path)
        if os.path.isdir(slot) and not process_tree.of_job(os.getpid()):
            take_ownership(self.paths.workspace, image, *runtime_of(self.plan))
            with suppress(OSError, StoreError):  # then it is removed
                release(self.paths.workspace, self.plan.checkout.path)

    def _workspace(self) -> List[str]:
        """A run's own lies in its directory, whatever a plan names: a job can write what it likes into that."""
        return [] if self.plan.keeps_workspace else [self.paths.workspace]


def image_of(containers: List[RunContainer], plan: Plan) -> Optional[str]:
    """An image that the host has, or else the plan's."""
    pinned = plan.container.image if plan.container is not None else {}
    planned = pinned.get(plan.image, plan.image) if plan.image is not None else None
    return next((container.image_id for container in containers if container.image_id), planned)


def runtime_of(plan: Plan) -> Tuple[str, Dict[str, str]]:
    """The container runtime, and the environment of its client."""
    return plan.container_runtime or "none", environment(plan)


def call_with_heartbeat(work: Callable[[], T], heartbeat: Callable[[], object], every: float) -> Optional[T]:
    """The result of `work`, while `heartbeat` is called every `every` seconds. None where it raises or takes longer
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
