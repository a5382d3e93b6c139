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
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

from .. import run_directory
from ..agent_log import log_traceback
from ..codec import RecordError, from_json
from ..containers.run_containers import DockerClient, RunContainer, RunContainers, names_by_runtime, read_invocations
from ..exit_gate import masked_record
from ..files import content_of
from ..gpus import nvidia_smi
from ..job_environment import job_environment, secret_values
from ..probe.payload.evidence_file import OFF as PROBE_OFF
from ..programs import run_program
from ..records import ContainerState, DockerVersions, Environment, GpuModel, Packages, Plan

POLL_SECONDS = 2.0  # between two checks for new containers; one starts its own work first
FINISH_SECONDS = 5.0  # the end of a run waits so long for a query that is running
QUERY_SECONDS = 30.0
_VENV_SECONDS = 2.0  # a script that makes a venv gets so long for that

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


class EnvironmentSnapshot:
    """Fills environment.json while the job runs."""

    def __init__(self, run_dir: str) -> None:
        self.paths = run_directory.RunDir(run_dir)
        self.containers = RunContainers(run_dir)
        self.plan = self.containers.plan
        self.environment = Environment(kernel=os.uname().release)
        self._states: Dict[str, ContainerState] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def container_ids(self) -> Tuple[str, ...]:
        """Those of the run's containers that are known by now."""
        return tuple(self._states)

    def begin(self) -> None:
        """Start the thread; not for a plan without container rules, which is no row's."""
        if self.plan.container is not None:
            self._thread.start()

    def finish(self, containers: List[RunContainer]) -> None:
        """Stop, and add the images of containers that ended before they were queried."""
        self._stop.set()
        if self._thread.ident:
            self._thread.join(FINISH_SECONDS)
            for container in containers:
                if container.id not in self._states:
                    problem = "the container ended before its packages could be listed"
                    self._add(container, Packages(problem=problem))

    def _watch(self) -> None:
        try:
            if self.plan.gpus and not self.plan.is_simulated:
                self._write(**_gpu_facts(run_program(nvidia_smi.QUERY_GPUS, QUERY_SECONDS).out))
            if self.plan.container_runtime == "none" or not self.plan.image:
                self._write(**vars(self._host_packages()))
            while not self._stop.wait(POLL_SECONDS):
                names = names_by_runtime(read_invocations(self.paths) or ())
                if sum(map(len, names.values())) > len(self._states):
                    for container in self.containers.find():
                        if container.running and container.id not in self._states:
                            self._add(container, _container_packages(container))
        except Exception as error:  # a missing fact must not disturb the job
            log_traceback(self.paths.path, "environment.json", error)
            self._write(problem=repr(error))

    def _host_packages(self) -> Packages:
        """Of the Python that the steps find: of the shared install steps, of the script's own venv, or the host's."""
        setup = self.plan.setup or os.path.join(self.paths.path, "tmp")
        venv = os.path.join(setup, "venv", "bin", "python3")
        makes_venv = self.plan.setup or b"/tmp/venv" in content_of(self.paths.script)
        deadline = time.monotonic() + (_VENV_SECONDS if makes_venv else 0.0)
        while time.monotonic() < deadline and not os.path.exists(venv) and not self._stop.wait(0.1):
            pass
        env = {**job_environment(Plan(host_env=self.plan.host_env), self.paths.path), PROBE_OFF: "1"}
        del env[run_directory.ENV_RUN_DIR]  # it is no process of the job
        python = venv if os.path.exists(venv) else shutil.which("python3", path=env.get("PATH")) or "python3"
        return parse_packages(run_program([python, "-c", LIST_PACKAGES], QUERY_SECONDS, env).out)

    def _add(self, container: RunContainer, packages: Packages) -> None:
        client = container.client
        docker = self.environment.docker or _versions(client)
        digests = client.run("image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', container.image_id).out
        self._states[container.id] = ContainerState(
            **vars(packages),
            name=container.name,
            image=container.image,
            image_id=container.image_id,
            digests=tuple(digests.split()),
            started_at=container.started_at,
        )
        self._write(docker=docker, containers=tuple(self._states.values()))

    def _write(self, **facts: object) -> None:
        self.environment = replace(self.environment, **facts)  # type: ignore[arg-type]
        try:
            environment = masked_record(self.environment, secret_values(self.plan))
            run_directory.write_record(self.paths.environment, environment, compact=True)
        except OSError:
            pass  # a full disk


def _gpu_facts(text: str) -> Dict[str, object]:
    """From the answer to QUERY_GPUS."""
    gpus = nvidia_smi.parse_gpus(text)
    memory = ["[N/A]" if gpu.total is None else "%d MiB" % gpu.total for gpu in gpus]
    models = tuple(GpuModel(gpu.index, gpu.uuid, gpu.name, memory[n]) for n, gpu in enumerate(gpus))
    return {"driver": gpus[0].driver if gpus else None, "gpus": models}


def parse_packages(output: str) -> Packages:
    """The last line that LIST_PACKAGES printed: a site's own start-up code may print as well."""
    lines = output.strip().splitlines()
    try:
        # A package that was installed by URL may have been so with a password.
        hidden = re.sub(r"//[^/@\s\"]*@", "//***@", lines[-1] if lines else "")
        return replace(from_json(Packages, hidden, where="python3"), taken_at=round(time.time(), 3))
    except RecordError:
        return Packages(problem="python3 did not list its packages")


def _container_packages(container: RunContainer) -> Packages:
    env = ("--env", "PYTHONDONTWRITEBYTECODE=1", "--env", PROBE_OFF + "=1")
    argv = ("exec", *env, container.id, "python3", "-c", LIST_PACKAGES)
    answer = container.client.run(*argv, timeout=QUERY_SECONDS)
    if answer.code != 0:
        return Packages(problem="its packages could not be listed: %s" % answer.problem)
    return parse_packages(answer.out)


def _versions(client: DockerClient) -> DockerVersions:
    """podman without a service has no server, and docker without a daemon."""
    template = "{{.Client.Version}}{{with .Server}} {{.Version}}{{end}}"
    versions: List[Optional[str]] = [*client.run("version", "--format", template).out.split(), None, None]
    return DockerVersions(versions[0], versions[1])
