"""Samples the GPUs of a run every two seconds while its job runs, into gpu.csv. Whatever fails here, the run does not
notice.

In the first hour a row stands for one sample; after N half hours for N seconds, with the peaks of these: 24 hours of
8 GPUs are some 10 MB.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from .. import codec, processes
from ..files import content_of
from ..processes import ask, run_program
from ..records import GpuProcessSample, GpuSample, Plan, ProcessOwner
from ..run_directory import RunDir
from . import nvidia_smi

END_SECONDS = 5.0  # the end of a run waits so long for a query that is running, and for the kernel's log
LISTED_SECONDS = 5.0  # for which nvidia-smi may list a process that ended
FREED_SECONDS = 1.0  # after which the memory of a process that ended is free
THINNED_SECONDS = 1800.0  # after each of these, rows stand for a second more
COLUMNS = [field.name for field in fields(GpuSample)]
_TEXTS = ("uuid", "problem")  # the other cells are JSON
_Names = Callable[[], Sequence[str]]
_MAX_XIDS = 500  # a GPU that breaks down writes them without end


class GpuSampler:
    """`own_gpus` are the UUIDs of the run's GPUs, none as long as they are not known; `containers` the ids of its
    containers. Samples are written into `own`, see run_directory.opened."""

    def __init__(self, paths: RunDir, own: RunDir, plan: Plan, own_gpus: _Names, containers: _Names) -> None:
        self._run_dir, self._path, self._plan = paths.path, own.gpu_samples, plan
        self._own_gpus, self._containers = own_gpus, containers
        self._began = time.time()
        self.found: List[nvidia_smi.Gpu] = []  # all of the host's, as far as it is known
        self._buses: Dict[str, Tuple[int, str]] = {}
        self._waiting: Dict[str, GpuSample] = {}  # by UUID: what the next row of this GPU stands for so far
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="gpu.csv")

    def start(self) -> None:
        """Does nothing for a run without GPUs, or on a host without nvidia-smi."""
        if self._plan.gpus and not self._plan.is_simulated and shutil.which("nvidia-smi"):
            self._began = time.time()  # what was before, while the run waited, is not its own
            self._thread.start()

    def close(self) -> None:
        """The job is over: the last line is whether the kernel's log was read."""
        self._stopped.set()
        if not self._thread.ident:
            return
        self._thread.join(END_SECONDS)
        since = [*nvidia_smi.XID_QUERIES[nvidia_smi.JOURNAL], "--since", "@%d" % self._began]
        answers = ask({**nvidia_smi.XID_QUERIES, nvidia_smi.JOURNAL: since}, END_SECONDS)
        ring, journal = answers[nvidia_smi.DMESG], answers[nvidia_smi.JOURNAL]
        self._write(*self._waiting.values())
        for xid in (nvidia_smi.parse_xids(journal.out) or nvidia_smi.parse_xids(ring.out))[-_MAX_XIDS:]:
            if xid.bus in self._buses and xid.at is not None and xid.at >= self._began - 1:
                gpu, uuid = self._buses[xid.bus]
                self._write(GpuSample(t=xid.at, gpu=gpu, uuid=uuid, xid=xid.number))
        was_read = nvidia_smi.is_kernel_log_readable(ring, journal)
        self._write(GpuSample(t=round(time.time(), 2), ended=True, kernel_log=was_read))

    def _run(self) -> None:
        """Until the end of the job, or until nvidia-smi fails: another one may hang in the driver for ever."""
        problem = ""
        self.found = nvidia_smi.parse_gpus(run_program(nvidia_smi.QUERY_GPUS, nvidia_smi.TIMEOUT).out)
        while not (problem or self._stopped.is_set()):
            at = round(time.time(), 2)
            answer = run_program(nvidia_smi.QUERY_SAMPLES, nvidia_smi.TIMEOUT)
            apps = nvidia_smi.parse_apps(run_program(nvidia_smi.QUERY_APPS, nvidia_smi.TIMEOUT).out)
            own, containers = self._own_gpus(), self._containers() if apps else ()
            listed = [self._process(app, containers) for app in apps]
            for sample, bus in nvidia_smi.parse_samples(answer.out, at):
                self._buses[bus] = sample.gpu or 0, sample.uuid
                on_gpu = tuple(process for uuid, process in listed if uuid == sample.uuid)
                if not own or sample.uuid in own:
                    self.add(replace(sample, processes=on_gpu))
            problem = "" if answer.code == 0 else "nvidia-smi failed: %s" % answer.last_line[:200]
            self._stopped.wait(nvidia_smi.SAMPLE_SECONDS)
        if problem:
            self._write(GpuSample(t=round(time.time(), 2), problem=problem))

    def _process(self, app: nvidia_smi.GpuProcess, containers: Sequence[str]) -> Tuple[str, GpuProcessSample]:
        """A process on a GPU, with the GPU's UUID. Those of a MIG device are listed under that, or `MIG-` and that."""
        is_shown = app.name[:1] != "["  # else its pid is of another namespace
        owner = process_owner(self._run_dir, self._plan, containers, app.pid) if is_shown else "unknown"
        process = GpuProcessSample(app.pid, app.used, owner, os.path.basename(app.name)[:60])
        return re.sub(r"^MIG-(GPU-[^/]*).*", r"\1", app.gpu_uuid), process

    def add(self, sample: GpuSample) -> None:
        before = self._waiting.pop(sample.uuid, None)
        row = sample if before is None else merged([before, sample])
        if row.seconds >= (sample.t - self._began) // THINNED_SECONDS:
            self._write(row)
        else:
            self._waiting[sample.uuid] = row

    def _write(self, *rows: GpuSample) -> None:
        """If the disk is full, samples are lost."""
        with suppress(OSError), open(self._path, "ab") as out:
            out.write(rows_of(rows, header=not out.tell()))


def process_owner(run_dir: str, plan: Plan, containers: Sequence[str], pid: int) -> ProcessOwner:
    """Whose a process on a GPU is. Only what the kernel shows counts."""
    process, agent = processes.stat(pid), processes.stat(os.getpid())
    if process is None or agent is None:
        return "unknown"  # of another PID namespace, or gone
    cgroups = content_of("/proc/%d/cgroup" % pid).decode("utf-8", "replace")
    has_mark = processes.mark(run_dir) in processes.environ(pid)
    if has_mark or processes.is_below(pid, os.getpid()) or any(id in cgroups for id in containers):
        return "run"
    # A container that was kept has processes from before this run; one of another's may be from afterwards.
    return "other" if plan.retry is None and int(process.start) < int(agent.start) else "unknown"


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
