"""environment.json: what a run was run with (driver, GPUs, images with their digests, Python and its packages).

It is recorded in a thread while the job runs, once a container is up, with a low priority. What the job installs later
is not in it, so `taken_at` says when it was recorded. A fact that is not known is left out, or has a `problem`.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import List, Sequence, Tuple

from .codec import RecordError, from_json, masked_record
from .containers.run_containers import RunContainer, RunContainers, started_containers
from .gpus import nvidia_smi
from .log_file import log_traceback
from .probe.payload.notes import OFF as PROBE_OFF
from .processes import run_program
from .records import ContainerState, Environment, GpuModel, Packages, QueryAnswer
from .run_directory import machine_environment, secret_values, write_record

POLL_SECONDS = 2.0  # between two checks for new containers; one starts its own work first
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
                models = [
                    GpuModel(gpu.index, gpu.uuid, gpu.name, "[N/A]" if gpu.total is None else "%d MiB" % gpu.total)
                    for gpu in gpus
                ]
                self._write(driver=gpus[0].driver if gpus else None, gpus=tuple(models))
            if self.plan.container_runtime == "none" or not self.plan.image:
                self._write(**vars(self._host_packages()))
            while not self._stop.wait(POLL_SECONDS):
                if len(started_containers(self.paths)) > len(self.container_ids):
                    self._add([container for container in self.containers.find() if container.running])
        except Exception as error:  # a missing fact must not disturb the job
            log_traceback(self.paths.path, "environment.json", error)
            self._write(problem=repr(error))

    def _host_packages(self) -> Packages:
        """Of the Python that the steps find: of the shared install steps, of the script's own venv, or the host's."""
        python = os.path.join(self.plan.setup or os.path.join(self.paths.path, "tmp"), "venv", "bin", "python3")
        self._stop.wait(POLL_SECONDS)  # a script that makes a venv gets so long for that
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
            digests = client.run("image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', container.image_id).out
            facts = {name: getattr(container, name) for name in ("name", "image", "image_id", "started_at")}
            state = ContainerState(**vars(packages), **facts, digests=tuple(digests.split()))
            self.container_ids += (container.id,)
            self._write(containers=(*self.environment.containers, state))

    def _write(self, **facts: object) -> None:
        self.environment = replace(self.environment, **facts)  # type: ignore[arg-type]
        with suppress(OSError):  # a full disk
            environment = masked_record(self.environment, secret_values(self.plan))
            write_record(self.paths.environment, environment, compact=True)


def parse_packages(answer: QueryAnswer) -> Packages:
    """From the last line that LIST_PACKAGES printed: a site's own start-up code may print as well."""
    lines = answer.out.strip().splitlines()
    try:
        # A package that was installed by URL may have been so with a password.
        hidden = re.sub(r"//[^/@\s\"]*@", "//***@", lines[-1] if lines else "")
        return replace(from_json(Packages, hidden, where="python3"), taken_at=round(time.time(), 3))
    except RecordError:
        return Packages(problem="its packages could not be listed: %s" % answer.last_line)
