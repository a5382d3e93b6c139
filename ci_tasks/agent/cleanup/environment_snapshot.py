"""Records what a run is run with: driver, GPUs, docker, images with their digests, Python and its packages.

Done in a thread while the job runs, once a container is up, with a low priority. What the job installs later is not
in it, so `taken_at` says when it was recorded. A fact that is not known is left out, or has a `problem` beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from dataclasses import field, replace
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from .. import run_directory
from ..agent_log import log_traceback
from ..codec import RecordError, from_json, parse
from ..containers.run_containers import DockerClient, RunContainer, RunContainers, names_by_runtime, read_invocations
from ..exit_gate import masked_record
from ..files import content_of
from ..gpus import nvidia_smi
from ..job_environment import job_environment, secret_values
from ..probe.payload.limits import OFF as PROBE_OFF
from ..programs import run_program
from ..quick_dataclass import dataclass
from ..records import ContainerState, DirectUrl, DockerVersions, Environment, GpuModel, Plan

STARTUP_SECONDS = 2.0  # a container gets so long to start its own work first
POLL_SECONDS = 1.0  # between two checks for new containers
MAX_POLL_SECONDS = 15.0
FINISH_SECONDS = 5.0  # the end of a run waits so long for a query that is running
QUERY_SECONDS = 30.0
ENDED_EARLY = "the container ended before its packages could be listed"
_NEVER = "0002"  # docker says that a container which did not start yet did so in the year 1
_OWN_VENV = b"/tmp/venv"  # in a script that makes a venv
_VENV_SECONDS = 2.0  # it gets so long for that

# What `pip freeze` would say, with nothing but the standard library of Python 3.8.
LIST_PACKAGES = r"""
import sys
sys.path = [path for path in sys.path if path]  # a json.py in the checkout is none of ours
import json, os
from importlib import metadata
try:
    os.nice(19)
except OSError:
    pass
packages, direct = {}, {}
for found in metadata.distributions():
    name = found.metadata["Name"]
    if not name or name in packages:
        continue
    packages[name] = found.version or ""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        vcs = origin.get("vcs_info") or {}
        if "url" in origin:
            direct[name] = {"url": str(origin["url"]), "vcs": vcs.get("vcs"), "commit_id": vcs.get("commit_id")}
    except Exception:
        pass
print("\n" + json.dumps({"python": sys.version.split()[0], "packages": packages, "direct": direct}))
"""


@dataclass(frozen=True)
class Packages:
    """What a Python has installed, as LIST_PACKAGES prints it; `problem` is why that is not known."""

    python: Optional[str] = None
    packages: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, DirectUrl] = field(default_factory=dict)
    taken_at: Optional[float] = None
    problem: Optional[str] = None


@dataclass(frozen=True)
class _Version:
    Version: Optional[str] = None


@dataclass(frozen=True)
class _Versions:
    """The output of `docker version`, with its keys."""

    Client: Optional[_Version] = None
    Server: Optional[_Version] = None


class EnvironmentSnapshot:
    """Fills environment.json while the job runs."""

    def __init__(self, run_dir: str) -> None:
        self.paths = run_directory.RunDir(run_dir)
        self.containers = RunContainers(run_dir)
        self.plan = self.containers.plan
        self.environment = Environment(kernel=os.uname().release)
        self._states: Dict[str, ContainerState] = {}
        self._versions: Optional[DockerVersions] = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def container_ids(self) -> Tuple[str, ...]:
        """Those of the run's containers that are known by now."""
        with self._lock:
            return tuple(self._states)

    def begin(self) -> None:
        """Start the thread; not for a plan without container rules, which is no row's."""
        if self.plan.container is not None:
            self._thread.start()

    def finish(self, containers: List[RunContainer]) -> None:
        """Stop, and add the images of containers that ended before they were queried."""
        self._stop.set()
        if not self._thread.ident:
            return
        self._thread.join(FINISH_SECONDS)
        for container in containers:
            if container.id not in self._states:
                self._add_state(container, Packages(problem=ENDED_EARLY))

    def _watch(self) -> None:
        try:
            self._query_host()
            if self._is_bare():
                self._query_bare()
            else:
                self._watch_containers()
        except Exception as error:  # a missing fact must not disturb the job
            log_traceback(self.paths.path, "environment.json", error)
            why = repr(error)
            self._update(lambda environment: replace(environment, problem=why))

    # -- the host ----------------------------------------------------------------------------------------------------

    def _is_bare(self) -> bool:
        return self.plan.container_runtime == "none" or not self.plan.image

    def _query_host(self) -> None:
        if not self.plan.gpus or self.plan.is_simulated:
            return
        driver, gpus = gpu_models(run_program(nvidia_smi.QUERY_GPUS, QUERY_SECONDS).out)
        self._update(lambda environment: replace(environment, driver=driver, gpus=gpus))

    def _query_bare(self) -> None:
        """The Python that the steps find: that of the shared install steps, of the script's own venv, or the host's."""
        setup, own = self.plan.setup, os.path.join(self.paths.path, "tmp", "venv", "bin", "python3")
        shared = os.path.join(setup, "venv", "bin", "python3") if setup else own
        deadline = time.monotonic() + (_VENV_SECONDS if setup or self._makes_venv() else 0.0)
        while time.monotonic() < deadline and not os.path.exists(shared) and not self._stop.wait(0.1):
            pass
        env = {**job_environment(Plan(host_env=self.plan.host_env), self.paths.path)}
        del env[run_directory.ENV_RUN_DIR]  # it is no process of the job
        env[PROBE_OFF] = "1"
        python = shared if os.path.exists(shared) else shutil.which("python3", path=env.get("PATH"))
        if python:
            packages = self._packages_now(run_program([python, "-c", LIST_PACKAGES], QUERY_SECONDS, env).out)
            self._update(lambda environment: replace(environment, **vars(packages)))

    def _makes_venv(self) -> bool:
        return _OWN_VENV in content_of(self.paths.script)

    # -- containers --------------------------------------------------------------------------------------------------

    def _watch_containers(self) -> None:
        """Query each container that docker.json names, once. A pull may take an hour, so the checks become rarer."""
        client = self.containers.client
        self._versions = _versions(client) if client is not None else None
        pause = POLL_SECONDS
        while not self._stop.wait(pause):
            names = names_by_runtime(read_invocations(self.paths) or ())
            if sum(map(len, names.values())) <= len(self._states):
                pause = POLL_SECONDS
                continue
            pause = min(pause * 1.5, MAX_POLL_SECONDS)
            for container in self.containers.find():
                if container.id in self._states:
                    continue
                if container.running and not self._stop.wait(STARTUP_SECONDS):
                    self._add_state(container, self._packages_in(container))
                elif not container.running and container.started_at > _NEVER:
                    self._add_state(container, Packages(problem=ENDED_EARLY))

    def _packages_in(self, container: RunContainer) -> Packages:
        env = ("--env", "PYTHONDONTWRITEBYTECODE=1", "--env", PROBE_OFF + "=1")
        argv = ("exec", *env, container.id, "python3", "-c", LIST_PACKAGES)
        answer = container.client.run(*argv, timeout=QUERY_SECONDS)
        if answer.code != 0:
            return Packages(problem="its packages could not be listed: %s" % answer.problem)
        return self._packages_now(answer.out)

    def _add_state(self, container: RunContainer, packages: Packages) -> None:
        fact = ContainerState(
            name=container.name,
            image=container.image,
            image_id=container.image_id,
            digests=tuple(_digests(container)),
            started_at=container.started_at,
            **vars(packages),
        )
        with self._lock:
            self._states[container.id] = fact
        self._versions = versions = self._versions or _versions(container.client)
        states = tuple(self._states.values())
        self._update(lambda environment: replace(environment, docker=versions, containers=states))

    # -- the file ----------------------------------------------------------------------------------------------------

    def _packages_now(self, output: str) -> Packages:
        return replace(parse_packages(output), taken_at=round(time.time(), 3))

    def _update(self, change: Callable[[Environment], Environment]) -> None:
        with self._lock:
            self.environment = change(self.environment)
            try:
                environment = masked_record(self.environment, secret_values(self.plan))
                run_directory.write_record(self.paths.environment, environment, compact=True)
            except OSError:
                pass  # a full disk


def gpu_models(text: str) -> Tuple[Optional[str], Tuple[GpuModel, ...]]:
    """Driver and GPUs from the answer to QUERY_GPUS."""
    gpus = nvidia_smi.parse_gpus(text)
    models = (
        GpuModel(gpu.index, gpu.uuid, gpu.name, "[N/A]" if gpu.total is None else "%d MiB" % gpu.total) for gpu in gpus
    )
    return (gpus[0].driver if gpus else None), tuple(models)


def parse_packages(output: str) -> Packages:
    """The last line that LIST_PACKAGES printed: a site's own start-up code may print as well."""
    lines = output.strip().splitlines()
    try:
        # A package that was installed by URL may have been so with a password.
        hidden = re.sub(r"//[^/@\s\"]*@", "//***@", lines[-1] if lines else "")
        return from_json(Packages, hidden, where="python3")
    except RecordError:
        return Packages(problem="python3 did not list its packages")


def _digests(container: RunContainer) -> List[str]:
    answer = container.client.run("image", "inspect", "--format", "{{json .RepoDigests}}", container.image_id)
    try:
        digests = parse(answer.out, where="docker image inspect")
    except RecordError:
        return []
    return [str(digest) for digest in digests] if isinstance(digests, list) else []


def _versions(client: DockerClient) -> Optional[DockerVersions]:
    """None where the daemon does not say."""
    answer = client.run("version", "--format", "{{json .}}")
    try:
        versions = from_json(_Versions, answer.out, where="docker version")
    except RecordError:
        return None
    return DockerVersions(
        versions.Client.Version if versions.Client else None, versions.Server.Version if versions.Server else None
    )
