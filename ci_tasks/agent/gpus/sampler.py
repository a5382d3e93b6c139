"""Samples the GPUs of a run once a second while its job runs, and writes gpu.jsonl.

Two nvidia-smi processes, which live as long as the job, are read by a thread each. One that hangs is left alone:
another one would hang too. One that ends is started again after a while. They end with the agent in every case: it
kills them, and where the agent is killed, the kernel does. Whatever fails here, the run does not notice.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from typing import Callable, Collection, Dict, List, Mapping, Sequence, Set, Tuple

from .. import process_tree
from ..programs import ask
from ..records import GpuProcessSample, GpuSample, Plan
from ..run_directory import RunDir
from . import nvidia_smi, xids
from .process_owner import ProcessOwners
from .sample_file import LISTED_SECONDS, SampleFile

FINISH_SECONDS = 2.0  # the end of a run waits so long for each thread
HELP_SECONDS = 20.0  # a cold driver needs several
KERNEL_LOG_SECONDS = 5.0
RESTART_SECONDS = (5.0, 30.0, 300.0)  # before nvidia-smi is started again; the last one counts from then on
_LEAST_SECONDS = 0.5  # between two samples: after a pause nvidia-smi may print several at once
_MAX_LINE = 4096
_MAX_NAME = 60  # characters of a process's name


class GpuSampler:
    """`own_gpus` are the UUIDs of the run's GPUs, none as long as they are not known; `containers` the ids of its
    containers."""

    def __init__(
        self,
        paths: RunDir,
        plan: Plan,
        own_gpus: Callable[[], Sequence[str]],
        containers: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        self._paths, self._plan, self._own_gpus, self._containers = paths, plan, own_gpus, containers
        self._file = SampleFile(paths.gpu_samples)
        self._began = 0.0
        self._stopped = threading.Event()
        self._running: "List[subprocess.Popen[bytes]]" = []
        self._lock = threading.Lock()  # of what both threads use
        self._buses: Dict[str, Tuple[int, str]] = {}
        self._processes: Dict[Tuple[str, int], Tuple[float, GpuProcessSample]] = {}
        self._sampled_at: Dict[str, float] = {}
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read_gpus, self._read_apps)]

    def start(self) -> None:
        """Does nothing for a run without GPUs, or where there is no nvidia-smi."""
        if self._plan.gpus and not self._plan.is_simulated and shutil.which("nvidia-smi"):
            self._began = time.time()
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """The job is over. A thread that hangs is left behind, and writes nothing any more."""
        if not self._began or self._stopped.is_set():
            return
        self._stopped.set()
        for process in list(self._running):
            process_tree.kill_tree(process.pid)
        for thread in self._threads:
            thread.join(FINISH_SECONDS)
        self._add_xids()
        self._file.close(self._own_gpus())

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _read_gpus(self) -> None:
        fields = nvidia_smi.sampled_fields(ask({"": nvidia_smi.HELP}, HELP_SECONDS)[""].out)
        self._read(nvidia_smi.stream_samples(fields), lambda line: self._add_sample(fields, line))

    def _read_apps(self) -> None:
        owners = ProcessOwners(self._paths.path, self._plan, self._containers)
        self._read(nvidia_smi.STREAM_APPS, lambda line: self._note_processes(owners, line))

    def _read(self, argv: Sequence[str], on_line: Callable[[str], None]) -> None:
        """Read a program that prints lines as long as it lives, and start it again after its end."""
        ends = 0
        while not self._stopped.is_set():
            process = subprocess.Popen(
                process_tree.dying_with_parent(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self._running.append(process)
            if self._stopped.is_set():
                process_tree.kill_tree(process.pid)
            last = ""
            with process:
                assert process.stdout is not None
                for line in iter(functools.partial(process.stdout.readline, _MAX_LINE), b""):
                    last = line.decode("utf-8", "replace").strip() or last
                    on_line(last)
            self._running.remove(process)
            if not self._stopped.is_set():
                self._note("nvidia-smi ended with exit code %d: %s" % (process.returncode, last[:200]))
            self._stopped.wait(RESTART_SECONDS[min(ends, len(RESTART_SECONDS) - 1)])
            ends += 1

    def _add_sample(self, fields: Mapping[str, str], line: str) -> None:
        parsed = nvidia_smi.parse_sample(fields, line, time.time())
        if parsed is None:
            return
        (sample, bus), own = parsed, self._own_gpus()
        if sample.t - self._sampled_at.get(sample.uuid, 0.0) < _LEAST_SECONDS:
            return
        self._sampled_at[sample.uuid] = sample.t
        self._buses[bus] = sample.gpu or 0, sample.uuid
        if not own or sample.uuid in own:
            self._file.add(replace(sample, processes=self._processes_on(sample.uuid)))

    def _note_processes(self, owners: ProcessOwners, line: str) -> None:
        for app in nvidia_smi.parse_apps(line):
            owner = owners.owner(app.pid) if not app.name.startswith("[") else "unknown"
            process = GpuProcessSample(app.pid, app.used, owner, os.path.basename(app.name)[:_MAX_NAME])
            with self._lock:
                self._processes[_gpu_of(app.gpu_uuid), app.pid] = time.monotonic(), process

    def _processes_on(self, uuid: str) -> Tuple[GpuProcessSample, ...]:
        oldest = time.monotonic() - LISTED_SECONDS
        with self._lock:
            self._processes = {key: entry for key, entry in self._processes.items() if entry[0] >= oldest}
            return tuple(process for (gpu, _), (_, process) in self._processes.items() if gpu == uuid)

    # -- at the end --------------------------------------------------------------------------------------------------

    def _add_xids(self) -> None:
        """What the kernel's log says of these GPUs since the beginning."""
        since = ["--since", "@%d" % self._began]
        queries = {**xids.QUERIES, xids.JOURNAL: [*xids.QUERIES[xids.JOURNAL], *since]}
        answers = ask(queries, KERNEL_LOG_SECONDS)
        ring, journal = answers[xids.DMESG], answers[xids.JOURNAL]
        seen: Set[Tuple[str, int, float]] = set()
        for xid in xids.parse_xids(ring.out) + xids.parse_xids(journal.out):
            # Both may have it, and their clocks differ by a little; both are in whole seconds.
            keys = [(xid.bus, xid.number, (xid.at or 0.0) + shift) for shift in (-1.0, 0.0, 1.0)]
            if xid.at is not None and xid.at >= self._began - 1 and not seen.intersection(keys):
                seen.add(keys[1])
                gpu, uuid = self._buses.get(xid.bus, (None, ""))
                if gpu is not None:
                    self._file.add(GpuSample(t=xid.at, gpu=gpu, uuid=uuid, xid=xid.number))
        self._file.add(GpuSample(t=_now(), ended=True, kernel_log=xids.is_readable(ring, journal)))

    def _note(self, problem: str) -> None:
        self._file.add(GpuSample(t=_now(), problem=problem))


def _gpu_of(uuid: str) -> str:
    """nvidia-smi lists the processes of a MIG device under the GPU's own UUID, or under `MIG-` and that."""
    return uuid[len("MIG-") :].partition("/")[0] if uuid.startswith("MIG-GPU-") else uuid


def _now() -> float:
    return round(time.time(), 2)
