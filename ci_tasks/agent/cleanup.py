"""The end of a run: collect its artifacts, remove what it left on the host, or keep it; and the same from outside, for
runs that are cancelled or whose agent has died.

Nothing here changes how the run ended, and nothing may keep the run from ending: what hangs is left behind, and named.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from . import processes
from . import run_directory as rd
from .artifacts import collect, mask_run
from .codec import masked_record
from .containers.run_containers import RunContainer, RunContainers, read_plan
from .directories import make_readable, remove_tree, take_ownership
from .files import content_of
from .gpus.nvidia_smi import Gpu
from .probe.evidence import collect_evidence
from .records import Environment, GpuModel, Kept, Plan
from .run_directory import RunDir, log_traceback, secret_values, write_record
from .slurm import jobs as slurm
from .slurm.jobs import CancelError
from .trees.git import StoreError
from .trees.workspace import release, slot_of


class RunCleanup:
    """What is still to be done for a run when its processes have ended: what was `kept` on purpose, a line for each
    thing that is `left`, and whether secrets are `masked` in all that leaves the host."""

    def __init__(self, paths: RunDir, plan: Plan) -> None:
        self.paths, self.plan, self.began = paths, plan, time.time()
        self.containers = RunContainers(paths.path)
        self.kept: Optional[Kept] = None
        self.left: List[str] = []
        self.masked = False
        self._directory = os.path.realpath(paths.path)

    def finish(self, succeeded: bool, gpus: Sequence[Gpu] = ()) -> None:
        """Collect artifacts, then remove or keep the rest. `gpus` are those of the host."""
        try:
            containers = self.containers.find()
            root = root_container(containers, self.plan)
            if not self._leads_elsewhere():
                self._collect(containers, gpus, root)
            if self.plan.keep and not succeeded:
                self.kept = Kept(tuple(container.name for container in containers), self.plan.workspace)
            else:
                self._remove(root)
        except Exception as error:  # whatever it is, the run has ended
            log_traceback(self.paths.path, "cleanup", error)
            self.left.append("not everything was removed: %r" % error)

    def _collect(self, containers: List[RunContainer], gpus: Sequence[Gpu], root: RootContainer) -> None:
        """Collect and mask what leaves the host."""
        if self.containers.problems:
            self.left.append("the artifacts in containers are not collected")
        secrets, problem = secret_values(self.plan), "the evidence of its processes is not complete"
        if self.plan.container is not None:  # else it is no row's
            write_environment(self.paths, containers, gpus, secrets)
        self.left += collect(self.paths, self.plan, containers, self.began)
        make_readable(self.paths.artifacts, *root)
        try:
            if self.plan.probe is not None:
                collect_evidence(self.paths)
            problem = "secrets are not masked yet"
            mask_run(self.paths, secrets, remove=lambda old: self.left.extend(remove_tree(old, *root)))
            self.masked = True
        except (OSError, ValueError) as error:
            self.left.append("%s: %s" % (problem, error))

    def _remove(self, root: RootContainer) -> None:
        problems, workspace, is_own = self.containers.remove(), self.paths.workspace, not self.plan.keeps_workspace
        self.left += problems
        if self._leads_elsewhere():
            self.left.append("%s is a different directory now: nothing in it is removed" % self.paths.path)
            return
        # Another run may have the workspace, unless something of the job's still exists that may write into it.
        if is_own and not problems and os.path.isdir(slot_of(workspace)) and not processes.of_job(os.getpid()):
            take_ownership(workspace, *root)
            with suppress(OSError, StoreError):  # then it is removed
                release(workspace, self.plan.checkout.path)
        # A run's own workspace is in its directory, whatever a plan names: a job can write what it likes into that.
        for path in (os.path.join(self.paths.path, "tmp"), self.paths.evidence, *([workspace] if is_own else [])):
            self.left += remove_tree(path, *root)

    def _leads_elsewhere(self) -> bool:
        """Whether a job put something else in the place of its run directory."""
        return os.path.realpath(self.paths.path) != self._directory


def write_environment(
    paths: RunDir, containers: Sequence[RunContainer], gpus: Sequence[Gpu], secrets: Sequence[str]
) -> None:
    """environment.json: driver, GPUs, and the containers with the digests of their images."""
    memory = {gpu.index: "[N/A]" if gpu.total is None else "%d MiB" % gpu.total for gpu in gpus}
    models = tuple(GpuModel(gpu.index, gpu.uuid, gpu.name, memory[gpu.index]) for gpu in gpus)
    driver, states = gpus[0].driver if gpus else None, tuple(container.state() for container in containers)
    environment = Environment(os.uname().release, driver, models, states)
    with suppress(OSError):  # a full disk
        write_record(paths.environment, masked_record(environment, secrets))


RootContainer = Tuple[Optional[str], str, Mapping[str, str]]


def root_container(containers: List[RunContainer], plan: Plan) -> RootContainer:
    """What a container that is root in the run's files needs: an image that the host has, or else the plan's, the
    runtime, and the environment of its client."""
    pinned = plan.container.image if plan.container is not None else {}
    planned = pinned.get(plan.image, plan.image) if plan.image is not None else None
    image = next((container.image_id for container in containers if container.image_id), planned)
    return image, plan.container_runtime or "none", {**os.environ, **plan.host_env}


# -- from outside ------------------------------------------------------------------------------------------------------

NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
CLEANUP_SECONDS = 120.0  # an agent gets so long after the grace period to collect and to remove
_SLURM_SECONDS = 60.0  # Slurm gets so long to end a job that is removed


def cancel(run_dir: str, kill: bool = False) -> None:
    """Ask the agent to cancel its job; if it has died, stop what it left. `kill`: without a grace period. Raises
    CancelError, OSError."""
    paths = RunDir(run_dir)
    if (job := slurm.read(run_dir)) is not None:
        slurm.cancel(run_dir, job, kill)
        return
    status = rd.read_status_if_readable(paths)
    if status.pid is not None and processes.alive(status):
        try:
            os.kill(status.pid, signal.SIGTERM)
        except ProcessLookupError:  # it has ended, or died, this moment
            cancel(run_dir, kill)
            return
        except OSError as error:
            raise CancelError("the agent, process %d, cannot be signalled: %s" % (status.pid, error.strerror)) from None
        if kill:  # else it would take the job's death for its own end, and the row would count as failed
            _wait_while(lambda: b'"cancelled"' not in content_of(paths.events), NOTICE_SECONDS)
            processes.kill_all(paths.path, rd.read_status_if_readable(paths).group)
    elif (status := rd.read_status_if_readable(paths)).gone or not status.has_ended:  # it may have ended this moment
        group = processes.orphaned_group(status, paths.path)
        found = len(processes.of_run(paths.path, group))
        if not kill:
            processes.terminate(paths.path, group)
            _wait_while(lambda: bool(processes.of_run(paths.path, group)), read_plan(paths).grace_seconds)
        processes.kill_all(paths.path, group)
        processes.record_cleanup(paths, found, RunContainers(paths.path).remove())


def _wait_while(condition: Callable[[], bool], seconds: float, poll_seconds: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(poll_seconds)


def remove_run(run_dir: str) -> List[str]:
    """End the run and remove everything that it left, and its run directory. Returns a line for each thing that
    could not be removed.

    While containers may be left, as if docker does not answer, the directory stays: it leads to them."""
    paths = RunDir(run_dir)
    left, root = _end(paths)
    if left:
        return [*left, "%s: kept until its containers are gone" % paths.path]
    return remove_tree(paths.path, *root)


def end_and_clean(run_dir: str) -> List[str]:
    """End the run; remove its containers and its workspace. Log and status stay. Returns a line for each thing that
    could not be removed."""
    paths = RunDir(run_dir)
    left, root = _end(paths)
    return left + remove_tree(paths.workspace, *root)


def _end(paths: RunDir) -> Tuple[List[str], RootContainer]:
    """End the run through its agent or Slurm, kill an agent that hangs, and remove the containers. Returns what is
    left. Raises RecordError if it cannot be known whether Slurm has a job of the run."""
    plan, status = read_plan(paths), rd.read_status_if_readable(paths)
    containers, job = RunContainers(paths.path, thorough=True), slurm.read(paths.path)
    with suppress(OSError, ValueError, CancelError):
        cancel(paths.path, kill=job is not None)
        if job is not None and job.id and not status.concluded:
            _wait_while(lambda: slurm.may_run([job.id])[job.id], _SLURM_SECONDS, poll_seconds=0.5)
    _wait_while(lambda: processes.alive(status), plan.grace_seconds + CLEANUP_SECONDS)
    if status.pid is not None and processes.alive(status):
        for pid in [*processes.below(status.pid), status.pid]:
            processes.send(pid, signal.SIGKILL)
    processes.kill_all(paths.path, processes.orphaned_group(rd.read_status_if_readable(paths), paths.path))
    found = containers.find()
    return containers.remove(), root_container(found, plan)
