"""nvidia-smi: all queries, pure parsers of the answers, and which GPUs are in use; samples of a run's GPUs, in gpu.csv;
and Xids, what the driver wrote of GPU faults into the kernel's log.

The GPUs of a run are sampled every two seconds while its job runs. Whatever fails there, the run does not notice. In
the first hour a row of gpu.csv stands for one sample; after N half hours for N seconds, with the peaks of these: 24
hours of 8 GPUs are some 10 MB.
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
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import codec, processes
from .files import content_of
from .processes import ask, run_program
from .quick_dataclass import dataclass
from .records import GpuProcessSample, GpuSample, Plan, ProcessOwner, QueryAnswer
from .run_directory import RunDir

TIMEOUT = 20.0  # seconds; a cold driver needs several
CSV_OPTION = "--format=csv,noheader,nounits"
QUERY_GPUS = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version,memory.used,memory.total", CSV_OPTION]
QUERY_APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", CSV_OPTION]
# Values of a GpuSample, and the PCI address. Newer drivers still know the older name of the event reasons.
_SAMPLED = {
    "gpu": "index", "uuid": "uuid", "used": "memory.used", "total": "memory.total", "bus": "pci.bus_id",
    "utilization": "utilization.gpu", "watts": "power.draw", "celsius": "temperature.gpu", "sm_mhz": "clocks.sm",
    "slowed": "clocks_throttle_reasons.active", "corrected": "ecc.errors.corrected.volatile.total",
    "uncorrected": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
QUERY_SAMPLES = ["nvidia-smi", "--query-gpu=" + ",".join(_SAMPLED.values()), CSV_OPTION]
SAMPLE_SECONDS = 2.0  # between two samples; the queries take some 50 ms of processor time
# Bits of clocks_event_reasons.active, as in nvml.h. An idle GPU and clocks that were set by hand are no throttling.
_SLOWDOWNS = (
    *((0x4, "power cap"), (0x8, "hardware slowdown"), (0x20, "thermal, by software")),
    *((0x40, "thermal, by hardware"), (0x80, "power brake")),
)
# An idle GPU holds some hundred MiB for its driver, more under MPS or a display. nvidia-smi does not list the processes
# of other containers; only the memory in use shows them.
HELD_MIB = 1024
NO_PROGRAM = "no nvidia-smi on PATH"


@dataclass(frozen=True)
class Gpu:
    """Memory in MiB; None if the driver does not report it (`[N/A]`, MIG without permission)."""

    index: int
    uuid: str
    name: str
    driver: str
    used: Optional[int]
    total: Optional[int]


class GpuProcess(NamedTuple):
    """A compute process on a GPU. `used` in MiB, or None."""

    gpu_uuid: str
    pid: int
    used: Optional[int]
    name: str


class GpuSnapshot(NamedTuple):
    """GPUs and their processes at one moment. `problem` is why there are none or, in nvidia-smi's own words, why there
    is nothing newer."""

    gpus: Tuple[Gpu, ...] = ()
    apps: Tuple[GpuProcess, ...] = ()
    problem: str = ""

    @property
    def ids(self) -> List[int]:
        return [gpu.index for gpu in self.gpus]


def simulated_gpus(count: int) -> GpuSnapshot:
    """`count` simulated GPUs, all free."""
    return GpuSnapshot(tuple(Gpu(index, "simulated-%d" % index, "simulated", "", 0, None) for index in range(count)))


def query_gpus() -> GpuSnapshot:
    """Run nvidia-smi once, for up to TIMEOUT seconds per query."""
    answer = run_program(QUERY_GPUS, TIMEOUT)
    gpus = tuple(parse_gpus(answer.out)) if answer.code == 0 else ()
    if gpus:
        answer = run_program(QUERY_APPS, TIMEOUT)
    if not gpus or answer.code != 0:
        return GpuSnapshot(problem=NO_PROGRAM if answer.is_missing else answer.last_line)
    return GpuSnapshot(gpus, tuple(parse_apps(answer.out)))


def _rows(text: str, most: int = -1) -> List[List[str]]:
    return [[cell.strip() for cell in line.split(",", most)] for line in text.splitlines()]


def parse_gpus(text: str) -> List[Gpu]:
    """The output of QUERY_GPUS. Lines that describe no GPU (an error about one that fell off the bus) are skipped."""
    gpus = []
    for cells in _rows(text):
        if len(cells) >= 6 and cells[0].isdecimal():
            index, uuid, *name, driver, used, total = cells  # a product's name may contain a comma
            gpus.append(Gpu(int(index), uuid, ", ".join(name), driver, _number(used), _number(total)))
    return sorted(gpus, key=lambda gpu: gpu.index)


def parse_apps(text: str) -> List[GpuProcess]:
    """The output of QUERY_APPS. Sentences such as `No running processes found` are skipped."""
    rows = _rows(text, 3)  # a command may have commas
    return [GpuProcess(row[0], int(row[1]), _number(row[2]), row[3]) for row in rows if row[3:] and row[1].isdecimal()]


def parse_samples(text: str, at: float) -> List[Tuple[GpuSample, str]]:
    """The output of QUERY_SAMPLES, each with its GPU's PCI address. Lines that describe no GPU are skipped."""
    samples = []
    for cells in _rows(text):
        if len(cells) == len(_SAMPLED) and cells[0].isdecimal():
            values = dict(zip(_SAMPLED, cells))  # noqa: B905  # Python 3.8
            uuid, bus, reasons = values.pop("uuid"), values.pop("bus"), slowdowns(values.pop("slowed"))
            numbers = {name: _number(value) for name, value in values.items()}
            slowed = dict.fromkeys(reasons, SAMPLE_SECONDS)
            samples.append((GpuSample(at, uuid=uuid, seconds=SAMPLE_SECONDS, slowed=slowed, **numbers), bus_id(bus)))
    return samples


def slowdowns(text: str) -> List[str]:
    """Why a clock is held down, by a mask as 0x0000000000000004."""
    mask = int(text, 16) if re.match(r"0x[0-9a-fA-F]{1,16}\Z", text) else 0
    if mask & (0x40 | 0x80):  # a hardware slowdown is their effect
        mask &= ~0x8
    return [reason for bit, reason in _SLOWDOWNS if mask & bit]


def gpus_in_use(gpus: Iterable[Gpu], apps: Iterable[GpuProcess]) -> Dict[int, str]:
    """{GPU id: description of its use}, whether or not its user holds a lock."""
    in_use = {}
    for gpu in gpus:
        on_gpu = [app for app in apps if app.gpu_uuid == gpu.uuid or app.gpu_uuid.startswith("MIG-%s/" % gpu.uuid)]
        # Daemons that keep a driver loaded or share a GPU are always there, and no jobs.
        users = [app for app in on_gpu if os.path.basename(app.name) not in ("nvidia-cuda-mps-server", "Xorg")]
        sizes = [app.used for app in users if app.used is not None]
        if users:
            names = [" (%s)" % app.name if app.name[:1] not in ("", "[") else "" for app in users]
            who = ", ".join("pid %d%s" % (app.pid, name) for app, name in zip(users, names))  # noqa: B905
            in_use[gpu.index] = "%s in use by %s" % (_memory(sum(sizes) if sizes else gpu.used), who)
        elif (gpu.used or 0) > HELD_MIB:
            in_use[gpu.index] = "%s of its memory held by a process that nvidia-smi does not show" % _memory(gpu.used)
    return in_use


def _memory(mib: Optional[int]) -> str:
    return "memory" if mib is None else "%d MiB" % mib if mib < 1024 else "%.0f GiB" % (mib / 1024)


def _number(text: str) -> Any:
    """An int or a float as nvidia-smi prints it; None for `[N/A]` and the like."""
    if re.match(r"\d{1,12}\Z", text):
        return int(text)
    return float(text) if re.match(r"\d{1,12}\.\d{1,9}\Z", text) else None


# -- samples -----------------------------------------------------------------------------------------------------------

END_SECONDS = 5.0  # the end of a run waits so long for a query that is running, and for the kernel's log
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
        self.found: List[Gpu] = []  # all of the host's, as far as it is known
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
        since = [*XID_QUERIES[JOURNAL], "--since", "@%d" % self._began]
        answers = ask({**XID_QUERIES, JOURNAL: since}, END_SECONDS)
        ring, journal = answers[DMESG], answers[JOURNAL]
        self._write(*self._waiting.values())
        for xid in (parse_xids(journal.out) or parse_xids(ring.out))[-_MAX_XIDS:]:
            if xid.bus in self._buses and xid.at is not None and xid.at >= self._began - 1:
                gpu, uuid = self._buses[xid.bus]
                self._write(GpuSample(t=xid.at, gpu=gpu, uuid=uuid, xid=xid.number))
        was_read = is_kernel_log_readable(ring, journal)
        self._write(GpuSample(t=round(time.time(), 2), ended=True, kernel_log=was_read))

    def _run(self) -> None:
        """Once, then until the end of the job, or until nvidia-smi fails: another may hang in the driver for ever."""
        self.found = parse_gpus(run_program(QUERY_GPUS, TIMEOUT).out)
        is_over = False
        while not is_over:
            at = round(time.time(), 2)
            answer = run_program(QUERY_SAMPLES, TIMEOUT)
            apps = parse_apps(run_program(QUERY_APPS, TIMEOUT).out)
            own, containers = self._own_gpus(), self._containers() if apps else ()
            listed = [self._process(app, containers) for app in apps]
            for sample, bus in parse_samples(answer.out, at):
                self._buses[bus] = sample.gpu or 0, sample.uuid
                on_gpu = tuple(process for uuid, process in listed if uuid == sample.uuid)
                if not own or sample.uuid in own:
                    self.add(replace(sample, processes=on_gpu))
            if answer.code:
                problem = "nvidia-smi failed: %s" % answer.last_line[:200]
                self._write(GpuSample(t=round(time.time(), 2), problem=problem))
            is_over = answer.code != 0 or self._stopped.wait(SAMPLE_SECONDS)

    def _process(self, app: GpuProcess, containers: Sequence[str]) -> Tuple[str, GpuProcessSample]:
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
    """The rows of gpu.csv, without undecodable rows: half written, or written by a job."""
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


# -- Xids --------------------------------------------------------------------------------------------------------------

DMESG, JOURNAL = "dmesg", "journal"
# The ring buffer forgets, the journal keeps the whole boot; a user may be allowed to read only one of them.
XID_QUERIES: Dict[str, Sequence[str]] = {
    DMESG: ["dmesg", "--kernel", "--level", "emerg,alert,crit,err,warn", "--time-format", "iso"],
    JOURNAL: ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--grep", "NVRM: Xid"],
}
_LINE = re.compile(
    r"(?:(?P<when>\d{4}-\d\d-\d\dT[\d:]{8})(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
    r".*NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
)


class Xid(NamedTuple):
    """`when` is the log's time, without its zone; `at` the same in seconds since the epoch. A log may have neither."""

    number: int
    bus: str
    when: str
    at: Optional[float] = None


def parse_xids(text: str) -> List[Xid]:
    """Lines as `2026-11-20T10:11:12,131415+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen …`."""
    lines = filter(None, map(_LINE.match, text.splitlines()))
    return [
        Xid(int(line["number"]), bus_id(line["bus"]), line["when"] or "", _seconds(line["when"], line["zone"]))
        for line in lines
    ]


def is_kernel_log_readable(ring: QueryAnswer, journal: QueryAnswer) -> bool:
    """Whether the kernel's log was read. `journalctl --grep` exits with 1 if nothing matched; a user who may read
    nothing gets a complaint too."""
    return ring.code == 0 or (journal.code in (0, 1) and not journal.err.strip())


def bus_id(text: str) -> str:
    """nvidia-smi writes 00000000:1B:00.0 for the kernel log's 0000:1b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].zfill(4), *parts[1:]])


def _seconds(when: Optional[str], zone: Optional[str]) -> Optional[float]:
    with suppress(ValueError):
        return datetime.strptime("%s%s" % (when, zone), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return None
