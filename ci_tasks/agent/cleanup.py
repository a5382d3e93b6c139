"""The end of a run: collect its artifacts, remove what it left on the host, or keep it; and the same from outside, for
runs that are cancelled or whose agent has died.

Nothing here changes how the run ended, and nothing may keep the run from ending: what hangs is left behind. The next
run removes containers of earlier runs whose daemon did not answer at their end.

What the run was run with (driver, GPUs, docker, images with their digests, Python and its packages) is recorded in a
thread while the job runs, once a container is up, with a low priority. What the job installs later is not in it, so
`taken_at` says when it was recorded. A fact that is not known is left out, or has a `problem` beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Callable, List, Mapping, Optional, Sequence, Tuple, TypeVar

from . import liveness, processes
from . import run_directory as rd
from .artifacts import collect, mask_run
from .codec import RecordError, from_json, masked_record
from .containers.run_containers import (
    RunContainer,
    RunContainers,
    is_container_problem,
    read_plan,
    remove_images,
    started_containers,
)
from .directories import make_readable, remove_tree, take_ownership
from .files import content_of
from .gpus import nvidia_smi
from .log_file import log_traceback
from .probe.evidence import collect_evidence
from .probe.payload.notes import OFF as PROBE_OFF
from .processes import run_program
from .quick_dataclass import dataclass
from .records import ContainerState, DockerVersions, Environment, GpuModel, Kept, Packages, Plan, QueryAnswer, Status
from .run_directory import RunDir, machine_environment, secret_values, write_record
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


NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
CLEANUP_SECONDS = 120.0  # an agent gets so long after the grace period to collect and to remove
_POLL_SECONDS = 0.05


# -- from outside ------------------------------------------------------------------------------------------------------


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
    from .slurm import session as slurm

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
    return left + remove_tree(paths.path if whole else paths.workspace, *root_container(found, plan))


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


SNAPSHOT_POLL_SECONDS = 2.0  # between two checks for new containers; one starts its own work first
FINISH_SECONDS = 5.0  # the end of a run waits so long for a query that is running
QUERY_SECONDS = 30.0

# What `pip freeze` would say, with nothing but the standard library of Python 3.8.
LIST_PACKAGES = r"""
import sys
sys.path = [path for path in sys.path if path]  # a json.py in the checkout is none of ours
import json, os
from importlib import metadata
os.nice(19)
packages, direct = {}, {}
for found in metadata.distributions():
    name = found.metadata["Name"]
    if name and name not in packages:
        packages[name] = found.version or ""
        try:
            origin = json.loads(found.read_text("direct_url.json"))
            direct[name] = {"url": str(origin["url"]), "commit_id": (origin.get("vcs_info") or {}).get("commit_id")}
        except Exception:
            pass  # from an index
print("\n" + json.dumps({"python": sys.version.split()[0], "packages": packages, "direct": direct}))
"""


# -- environment.json --------------------------------------------------------------------------------------------------


class EnvironmentSnapshot:
    """Fills environment.json while the job runs."""

    def __init__(self, run_dir: str) -> None:
        self.containers = RunContainers(run_dir)
        self.plan, self.paths = self.containers.plan, self.containers.paths
        self.environment = Environment(kernel=os.uname().release)
        self.container_ids: Tuple[str, ...] = ()  # those of the run's containers that are known by now
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        """Start the thread; not for a plan without container rules, which is no row's."""
        if self.plan.container is not None:
            self._thread.start()

    def finish(self, containers: List[RunContainer]) -> None:
        """Stop, and add the images of containers that ended before they were queried."""
        self._stop.set()
        if self._thread.ident:
            self._thread.join(FINISH_SECONDS)
            self._add(containers, problem="the container ended before its packages could be listed")

    def _watch(self) -> None:
        try:
            if self.plan.gpus and not self.plan.is_simulated:
                gpus = nvidia_smi.parse_gpus(run_program(nvidia_smi.QUERY_GPUS, QUERY_SECONDS).out)
                driver = gpus[0].driver if gpus else None
                memory = ["[N/A]" if gpu.total is None else "%d MiB" % gpu.total for gpu in gpus]
                models = tuple(GpuModel(gpu.index, gpu.uuid, gpu.name, memory[n]) for n, gpu in enumerate(gpus))
                self._write(driver=driver, gpus=models)
            if self.plan.container_runtime == "none" or not self.plan.image:
                self._write(**vars(self._host_packages()))
            while not self._stop.wait(SNAPSHOT_POLL_SECONDS):
                if len(started_containers(self.paths)) > len(self.container_ids):
                    self._add([container for container in self.containers.find() if container.running])
        except Exception as error:  # a missing fact must not disturb the job
            log_traceback(self.paths.path, "environment.json", error)
            self._write(problem=repr(error))

    def _host_packages(self) -> Packages:
        """Of the Python that the steps find: of the shared install steps, of the script's own venv, or the host's."""
        python = os.path.join(self.plan.setup or os.path.join(self.paths.path, "tmp"), "venv", "bin", "python3")
        self._stop.wait(SNAPSHOT_POLL_SECONDS)  # a script that makes a venv gets so long for that
        env = {**machine_environment(self.plan.host_env), PROBE_OFF: "1"}
        if not os.path.exists(python):
            python = shutil.which("python3", path=env.get("PATH")) or "python3"
        return parse_packages(run_program([python, "-c", LIST_PACKAGES], QUERY_SECONDS, env))

    def _add(self, containers: Sequence[RunContainer], problem: str = "") -> None:
        """Add those that are not known yet; their packages, unless there is a `problem`."""
        for container in (each for each in containers if each.id not in self.container_ids):
            client, packages = container.client, Packages(problem=problem)
            if not problem:
                env = ("--env", "PYTHONDONTWRITEBYTECODE=1", "--env", PROBE_OFF + "=1")
                argv = ("exec", *env, container.id, "python3", "-c", LIST_PACKAGES)
                packages = parse_packages(client.run(*argv, timeout=QUERY_SECONDS))
            # podman without a service has no server, and docker without a daemon.
            template = "{{.Client.Version}}{{with .Server}} {{.Version}}{{end}}"
            versions: List[Optional[str]] = [*client.run("version", "--format", template).out.split(), None, None]
            digests = client.run("image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', container.image_id).out
            facts = {name: getattr(container, name) for name in ("name", "image", "image_id", "started_at")}
            state = ContainerState(**vars(packages), **facts, digests=tuple(digests.split()))
            self.container_ids += (container.id,)
            self._write(docker=DockerVersions(*versions[:2]), containers=(*self.environment.containers, state))

    def _write(self, **facts: object) -> None:
        self.environment = replace(self.environment, **facts)  # type: ignore[arg-type]
        try:
            environment = masked_record(self.environment, secret_values(self.plan))
            write_record(self.paths.environment, environment, compact=True)
        except OSError:
            pass  # a full disk


def parse_packages(answer: QueryAnswer) -> Packages:
    """From the last line that LIST_PACKAGES printed: a site's own start-up code may print as well."""
    lines = answer.out.strip().splitlines()
    try:
        # A package that was installed by URL may have been so with a password.
        hidden = re.sub(r"//[^/@\s\"]*@", "//***@", lines[-1] if lines else "")
        return replace(from_json(Packages, hidden, where="python3"), taken_at=round(time.time(), 3))
    except RecordError:
        return Packages(problem="its packages could not be listed: %s" % answer.last_line)
