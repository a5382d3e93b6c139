"""environment.json: driver, GPUs, and the containers with the digests of their images. It is recorded in a thread while
the job runs. A fact that is not known is left out.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Sequence, Tuple

from .codec import masked_record
from .containers.run_containers import RunContainer, RunContainers, started_containers
from .gpus import nvidia_smi
from .log_file import log_traceback
from .processes import run_program
from .records import ContainerState, Environment, GpuModel
from .run_directory import secret_values, write_record

POLL_SECONDS = 2.0  # between two checks for new containers
FINISH_SECONDS = 5.0  # the end of a run waits so long for a query that is running
QUERY_SECONDS = 30.0


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

    def finish(self, containers: Sequence[RunContainer]) -> None:
        """Stop, and add the containers that ended before they were seen."""
        self._stop.set()
        if self._thread.ident:
            self._thread.join(FINISH_SECONDS)
            self._add(containers)

    def _watch(self) -> None:
        try:
            if self.plan.gpus and not self.plan.is_simulated:
                gpus = nvidia_smi.parse_gpus(run_program(nvidia_smi.QUERY_GPUS, QUERY_SECONDS).out)
                memory = {gpu.index: "[N/A]" if gpu.total is None else "%d MiB" % gpu.total for gpu in gpus}
                models = tuple(GpuModel(gpu.index, gpu.uuid, gpu.name, memory[gpu.index]) for gpu in gpus)
                self._write(replace(self.environment, driver=gpus[0].driver if gpus else None, gpus=models))
            while not self._stop.wait(POLL_SECONDS):
                if len(started_containers(self.paths)) > len(self.container_ids):
                    self._add(self.containers.find())
        except Exception as error:  # a missing fact must not disturb the job
            log_traceback(self.paths.path, "environment.json", error)

    def _add(self, containers: Sequence[RunContainer]) -> None:
        """Add those that are not known yet."""
        for container in (each for each in containers if each.id not in self.container_ids):
            form = '{{join .RepoDigests "\\n"}}'
            digests = container.client.run("image", "inspect", "--format", form, container.image_id).out
            facts = {name: getattr(container, name) for name in ("name", "image", "image_id", "started_at")}
            state = ContainerState(**facts, digests=tuple(digests.split()))
            self.container_ids += (container.id,)
            self._write(replace(self.environment, containers=(*self.environment.containers, state)))

    def _write(self, environment: Environment) -> None:
        self.environment = environment
        with suppress(OSError):  # a full disk
            masked = masked_record(environment, secret_values(self.plan))
            write_record(self.paths.environment, masked, compact=True)
