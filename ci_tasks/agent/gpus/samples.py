"""Samples the GPUs of a run once a second while its job runs, into gpu.csv.

Two nvidia-smi processes, which live as long as the job, are read by a thread each. One that hangs or ends is not
started again. They end with the agent in every case: it kills them, and if the agent is killed, the kernel does.
Whatever fails here, the run does not notice.

The first ROWS stand for a second each, the next ones for two, then four and so on, and keep the peaks of these: 24
hours of 8 GPUs are some 10 MB.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from .. import codec, processes, run_directory
from ..files import content_of
from ..processes import ask
from ..records import GpuProcessSample, GpuSample, Plan, ProcessOwner
from ..run_directory import RunDir
from . import nvidia_smi

KERNEL_LOG_SECONDS = 5.0
_Names = Callable[[], Sequence[str]]
_MAX_XIDS = 500  # a GPU that breaks down writes them without end
_MAX_LINE = 4096


class GpuSampler:
    """`own_gpus` are the UUIDs of the run's GPUs, none as long as they are not known; `containers` the ids of its
    containers. Samples are written into `own`, see run_directory.opened."""

    def __init__(self, paths: RunDir, own: RunDir, plan: Plan, own_gpus: _Names, containers: _Names) -> None:
        self._plan, self._own_gpus = plan, own_gpus
        self._owner = functools.partial(process_owner, paths.path, plan, containers)
        self._file = SampleFile(own.gpu_samples)
        self._began = 0.0
        self._running: "List[subprocess.Popen[bytes]]" = []
        self._stopped = threading.Event()
        self._buses: Dict[str, Tuple[int, str]] = {}
        self._processes: Dict[Tuple[str, int], Tuple[float, GpuProcessSample]] = {}

    def start(self) -> None:
        """Does nothing for a run without GPUs, or on a host without nvidia-smi."""
        if self._plan.gpus and not self._plan.is_simulated and shutil.which("nvidia-smi"):
            self._began = time.time()
            for work in ((nvidia_smi.STREAM_SAMPLES, self._add), (nvidia_smi.STREAM_APPS, self._note_processes)):
                threading.Thread(target=self._read, args=work, daemon=True).start()

    def close(self) -> None:
        """The job is over: the last line is whether the kernel's log was read."""
        if not self._began or self._stopped.is_set():
            return
        self._stopped.set()
        for process in list(self._running):
            processes.kill_tree(process.pid)
        since = [*nvidia_smi.XID_QUERIES[nvidia_smi.JOURNAL], "--since", "@%d" % self._began]
        answers = ask({**nvidia_smi.XID_QUERIES, nvidia_smi.JOURNAL: since}, KERNEL_LOG_SECONDS)
        ring, journal = answers[nvidia_smi.DMESG], answers[nvidia_smi.JOURNAL]
        for xid in (nvidia_smi.parse_xids(journal.out) or nvidia_smi.parse_xids(ring.out))[-_MAX_XIDS:]:
            if xid.bus in self._buses and xid.at is not None and xid.at >= self._began - 1:
                gpu, uuid = self._buses[xid.bus]
                self._file.add(GpuSample(t=xid.at, gpu=gpu, uuid=uuid, xid=xid.number))
        was_read = nvidia_smi.is_kernel_log_readable(ring, journal)
        self._file.add(GpuSample(t=round(time.time(), 2), ended=True, kernel_log=was_read))

    def _read(self, argv: Sequence[str], on_line: Callable[[str], None]) -> None:
        """Read a program that prints lines as long as it lives."""
        null, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        process = subprocess.Popen(processes.dying_with_parent(argv), stdin=null, stdout=pipe, stderr=same)
        self._running.append(process)
        last = ""
        with process:
            assert process.stdout is not None
            for line in iter(functools.partial(process.stdout.readline, _MAX_LINE), b""):
                last = line.decode("utf-8", "replace").strip() or last
                if not self._stopped.is_set():
                    on_line(last)
        if not self._stopped.is_set():
            problem = "nvidia-smi ended with exit code %d: %s" % (process.returncode, last[:200])
            self._file.add(GpuSample(t=round(time.time(), 2), problem=problem))

    def _add(self, line: str) -> None:
        for sample, bus in nvidia_smi.parse_samples(line, time.time()):
            self._buses[bus] = sample.gpu or 0, sample.uuid
            own, oldest = self._own_gpus(), time.monotonic() - LISTED_SECONDS
            listed = list(self._processes.items())
            on_gpu = tuple(process for (uuid, _), (at, process) in listed if uuid == sample.uuid and at >= oldest)
            if not own or sample.uuid in own:
                self._file.add(replace(sample, processes=on_gpu))

    def _note_processes(self, line: str) -> None:
        for app in nvidia_smi.parse_apps(line):
            owner = self._owner(app.pid) if app.name[:1] != "[" else "unknown"  # its pid is of another namespace
            process = GpuProcessSample(app.pid, app.used, owner, os.path.basename(app.name)[:60])
            # The processes of a MIG device are listed under the GPU's own UUID, or under `MIG-` and that.
            uuid = re.sub(r"^MIG-(GPU-[^/]*).*", r"\1", app.gpu_uuid)
            self._processes[uuid, app.pid] = time.monotonic(), process


def process_owner(run_dir: str, plan: Plan, containers: _Names, pid: int) -> ProcessOwner:
    """Whose a process on a GPU is. Only what the kernel shows counts."""
    process, agent = processes.stat(pid), processes.stat(os.getpid())
    if process is None or agent is None:
        return "unknown"  # of another PID namespace, or gone
    mark = os.fsencode("%s=%s" % (run_directory.ENV_RUN_DIR, run_directory.mark(run_dir)))
    cgroups = content_of("/proc/%d/cgroup" % pid).decode("utf-8", "replace")
    is_in_container = any(id in cgroups for id in containers())
    if processes.is_below(pid, os.getpid()) or mark in processes.environ(pid) or is_in_container:
        return "run"
    # A container that was kept has processes from before this run; one of another's may be from afterwards.
    return "other" if plan.retry is None and int(process.start) < int(agent.start) else "unknown"


ROWS = 10_000  # before each stands for twice as many seconds
LISTED_SECONDS = 5.0  # for which a process counts as being on a GPU after it was listed there
FREED_SECONDS = 1.0  # after which the memory of a process that ended is free
COLUMNS = [field.name for field in fields(GpuSample)]
_TEXTS = ("uuid", "problem")  # the other cells are JSON


# -- gpu.csv -----------------------------------------------------------------------------------------------------------


def rows_of(samples: Iterable[GpuSample], header: bool = False) -> bytes:
    """An empty cell has its default, which is mostly "not known"."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    for sample in samples:
        cells = codec.encode(sample, versioned=False, compact=True).items()
        writer.writerow({name: cell if name in _TEXTS else json.dumps(cell) for name, cell in cells})
    return out.getvalue().encode("utf-8", "backslashreplace")


def read_gpu_samples(text: str) -> List[GpuSample]:
    """The rows of gpu.csv, without those that cannot be decoded: half written, or written by a job."""
    samples = []
    with suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text.replace("\0", ""), newline="")):
            with suppress(codec.RecordError):
                known = [(name, row[name]) for name in COLUMNS if row.get(name)]
                cells = {name: cell if name in _TEXTS else codec.parse(cell, where=name) for name, cell in known}
                samples.append(codec.decode(GpuSample, cells, where="a row"))
    return samples


class SampleFile:
    """Appends samples to the file; the first one has to be a measurement. It is full or gone: then samples are lost."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows, self._seconds = 0, 1
        self._open: Dict[str, List[GpuSample]] = {}  # by UUID: what the next row of this GPU stands for
        self._lock = threading.Lock()

    def add(self, sample: GpuSample) -> None:
        with self._lock:
            if sample.is_measurement:
                waiting = self._open.setdefault(sample.uuid, [])
                waiting.append(sample)
                if len(waiting) >= self._seconds:
                    self._write(merged(self._open.pop(sample.uuid)))
            elif self._rows:
                for waiting in self._open.values() if sample.ended else ():
                    self._write(merged(waiting))
                self._write(sample)

    def _write(self, row: GpuSample) -> None:
        with suppress(OSError), open(self._path, "ab") as out:
            os.fchmod(out.fileno(), 0o644)
            out.write(rows_of([row], header=not self._rows))
        self._rows += 1
        self._seconds *= 1 if self._rows % ROWS else 2


def merged(samples: Sequence[GpuSample]) -> GpuSample:
    """One row for several of one GPU, in order of time."""

    def most(name: str, choose: Callable[..., Any] = max) -> Any:
        return choose((value for value in (getattr(one, name) for one in samples) if value is not None), default=None)

    uses = [(sample.utilization, sample.seconds) for sample in samples if sample.utilization is not None]
    weight = sum(seconds for _, seconds in uses)
    by_memory = sorted((one for sample in samples for one in sample.processes), key=lambda one: one.memory or 0)
    reasons = dict.fromkeys(reason for one in samples for reason in one.slowed)
    return replace(
        samples[0],
        seconds=round(samples[-1].t - samples[0].t + samples[-1].seconds, 2),
        utilization=round(sum(use * seconds for use, seconds in uses) / weight, 1) if weight else None,
        sm_mhz=most("sm_mhz", min),
        slowed={reason: sum(one.slowed.get(reason, 0.0) for one in samples) for reason in reasons},
        processes=tuple({process.pid: process for process in by_memory}.values()),
        **{name: most(name) for name in ("used", "total", "watts", "celsius", "corrected", "uncorrected")},
    )
