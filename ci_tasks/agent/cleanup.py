"""The end of a run: collect its artifacts, remove what it left on the host, or keep it; and the same from outside, for
runs that are cancelled or whose agent has died.

Nothing here changes how the run ended, and nothing may keep the run from ending: what hangs is left behind. The next
run removes containers of earlier runs whose daemon did not answer at their end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Callable, List, Mapping, Optional, Sequence, Tuple, TypeVar

from . import liveness, processes
from . import run_directory as rd
from .artifacts import collect, mask_run
from .codec import masked_record
from .containers.run_containers import RunContainer, RunContainers, is_container_problem, read_plan
from .directories import make_readable, remove_tree, take_ownership
from .files import content_of
from .gpus.nvidia_smi import Gpu
from .log_file import log_traceback
from .probe.evidence import collect_evidence
from .quick_dataclass import dataclass
from .records import Environment, GpuModel, Kept, Plan
from .run_directory import RunDir, secret_values, write_record
from .slurm import job_file as slurm_job
from .trees.git import StoreError
from .trees.workspace import release, slot_of

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

    def __init__(self, paths: RunDir, plan: Plan) -> None:
        self.paths, self.plan, self.began = paths, plan, time.time()
        self.containers = RunContainers(paths.path)
        self._directory = os.path.realpath(paths.path)

    def finish(self, succeeded: bool, gpus: Sequence[Gpu] = ()) -> CleanupResult:
        """Collect artifacts, then remove or keep the rest. `gpus` are those of the host."""
        left: List[str] = []
        try:
            containers = self.containers.find()
            masked = not self._leads_elsewhere() and self._collect(containers, gpus, left)
            if self.plan.keep and not succeeded:
                kept = Kept(tuple(container.name for container in containers), self.plan.workspace)
                return CleanupResult(kept, tuple(left), masked)
            left += self._remove(containers)
            return CleanupResult(left=tuple(left), masked=masked)
        except Exception as error:  # whatever it is, the run has ended
            log_traceback(self.paths.path, "cleanup", error)
            return CleanupResult(left=("not everything was removed: %r" % error,))

    def _collect(self, containers: List[RunContainer], gpus: Sequence[Gpu], left: List[str]) -> bool:
        """Collect what leaves the host. Returns whether secrets are masked in it."""
        if self.containers.problems:
            left.append("the artifacts in containers are not collected")
        root, secrets = root_container(containers, self.plan), secret_values(self.plan)
        if self.plan.container is not None:  # else it is no row's
            write_environment(self.paths, containers, gpus, secrets)
        left += collect(self.paths, self.plan, containers, self.began)
        make_readable(self.paths.artifacts, *root)
        problem = "the evidence of its processes is not complete"
        try:
            if self.plan.probe is not None:
                collect_evidence(self.paths, secrets)
            problem = "secrets are not masked yet"
            unmasked = mask_run(self.paths, secrets)
        except (OSError, ValueError) as error:
            left.append("%s: %s" % (problem, error))
            return False
        left += remove_tree(unmasked, *root) if unmasked else []
        return True

    def _remove(self, containers: List[RunContainer]) -> List[str]:
        root = root_container(containers, self.plan)
        left = self.containers.remove()
        if self._leads_elsewhere():
            return [*left, "%s leads elsewhere now: nothing below it is removed" % self.paths.path]
        if not left and not self.plan.keeps_workspace:
            self._release_workspace(root)
        # A run's own workspace is in its directory, whatever a plan names: a job can write what it likes into that.
        workspace = [] if self.plan.keeps_workspace else [self.paths.workspace]
        for path in (os.path.join(self.paths.path, "tmp"), self.paths.evidence, *workspace):
            left += remove_tree(path, *root)
        return left

    def _leads_elsewhere(self) -> bool:
        """Whether a job put something else in the place of its run directory."""
        return os.path.realpath(self.paths.path) != self._directory

    def _release_workspace(self, root: "RootContainer") -> None:
        """Let another run have the workspace, unless something of the job's still exists that may write into it."""
        if os.path.isdir(slot_of(self.paths.workspace)) and not processes.of_job(os.getpid()):
            take_ownership(self.paths.workspace, *root)
            with suppress(OSError, StoreError):  # then it is removed
                release(self.paths.workspace, self.plan.checkout.path)


def write_environment(
    paths: RunDir, containers: Sequence[RunContainer], gpus: Sequence[Gpu], secrets: Sequence[str]
) -> None:
    """environment.json: driver, GPUs, and the containers with the digests of their images. A fact that is not known is
    left out."""
    memory = {gpu.index: "[N/A]" if gpu.total is None else "%d MiB" % gpu.total for gpu in gpus}
    models = tuple(GpuModel(gpu.index, gpu.uuid, gpu.name, memory[gpu.index]) for gpu in gpus)
    driver, states = gpus[0].driver if gpus else None, tuple(container.state() for container in containers)
    environment = Environment(os.uname().release, driver, models, states)
    with suppress(OSError):  # a full disk
        write_record(paths.environment, masked_record(environment, secrets), compact=True)


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


# -- from outside ------------------------------------------------------------------------------------------------------

NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
CLEANUP_SECONDS = 120.0  # an agent gets so long after the grace period to collect and to remove
_POLL_SECONDS = 0.05


class CancelError(Exception):
    """A run that cannot be cancelled from here."""


def cancel(run_dir: str) -> None:
    """Ask the agent to cancel its job; if it has died, stop what it left. Raises CancelError."""
    paths = RunDir(run_dir)
    if _cancel_slurm_job(paths, kill=False) or _signal_agent(paths):
        return
    status = rd.read_status_if_readable(paths)  # it may have ended this moment
    if not status.has_ended or status.gone:
        group = processes.orphaned_group(status, paths.path)
        found = len(processes.of_run(paths.path, group))
        processes.terminate(paths.path, group)
        _wait_while(lambda: bool(processes.of_run(paths.path, group)), read_plan(paths).grace_seconds)
        processes.kill_all(paths.path, group)
        liveness.record_cleanup(paths, found, RunContainers(paths.path).remove())


def kill(run_dir: str) -> None:
    """Kill everything of the run, without a grace period. Its agent is signalled first: otherwise it would take the
    job's death for its own end, and the row would count as failed. Raises CancelError."""
    paths = RunDir(run_dir)
    if _cancel_slurm_job(paths, kill=True):
        return
    status = rd.read_status_if_readable(paths)
    group = processes.orphaned_group(status, paths.path)
    if _signal_agent(paths):
        group = status.group
        _wait_while(lambda: b'"cancelled"' not in content_of(paths.events), NOTICE_SECONDS)
    processes.kill_all(paths.path, group)


def _signal_agent(paths: RunDir) -> bool:
    """Whether an agent was asked to cancel its job. Raises CancelError."""
    status = rd.read_status_if_readable(paths)
    if status.pid is None or not processes.alive(status):
        return False
    try:
        os.kill(status.pid, signal.SIGTERM)
        return True
    except ProcessLookupError:
        return False
    except OSError as error:
        raise CancelError("the agent, process %s, cannot be signalled: %s" % (status.pid, error.strerror)) from None


def _cancel_slurm_job(paths: RunDir, kill: bool) -> bool:
    """Whether the run is a Slurm job, which then is cancelled. Raises CancelError."""
    job = slurm_job.read(paths.path)
    if job is None:
        return False
    from .slurm import session as slurm

    try:
        if kill:
            slurm.kill(paths.path, job)
        else:
            slurm.cancel(paths.path, job)
    except slurm.ScancelError as error:
        raise CancelError("Slurm did not cancel it: %s" % error) from None
    return True


def _wait_while(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


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
    """End the run through its agent, kill an agent that hangs, and remove the containers. Returns what is left."""
    plan, status = read_plan(paths), rd.read_status_if_readable(paths)
    containers = RunContainers(paths.path, thorough=True)
    with suppress(OSError, ValueError, CancelError):
        cancel(paths.path)
    _wait_while(lambda: processes.alive(status), plan.grace_seconds + CLEANUP_SECONDS)
    if status.pid is not None and processes.alive(status):
        processes.kill_tree(status.pid)
    processes.kill_all(paths.path, processes.orphaned_group(rd.read_status_if_readable(paths), paths.path))
    found = containers.find()
    return containers.remove(), root_container(found, plan)


def remove_left_containers(run_dir: str) -> None:
    """Remove the containers of ended runs of the same home, unless they are kept on purpose: one that goes on keeps its
    GPUs. Nothing else of those runs is removed, since their jobs could write into their plans."""
    own, containers = RunDir(run_dir).path, RunContainers(run_dir)
    try:
        for container in containers.find_of_any_run() if containers.plan.image else ():
            other = container.run_dir
            if other != own and os.path.dirname(os.path.dirname(other)) == os.path.dirname(os.path.dirname(own)):
                _remove_left(RunDir(other), container)
    except Exception as error:  # another run's remains must not disturb this one
        log_traceback(run_dir, "containers of earlier runs", error)


def _remove_left(paths: RunDir, container: RunContainer) -> None:
    status = rd.read_status_if_readable(paths)
    if not status.has_ended or status.kept is not None or liveness.is_held(paths.path) or processes.alive(status):
        return  # it goes on
    if container.client.run("rm", "--force", "--volumes", "--", container.id).code == 0:
        left = tuple(line for line in status.left if not is_container_problem(line))
        rd.write_record(paths.status, replace(status, sequence=status.sequence + 1, left=left))
