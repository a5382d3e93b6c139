"""nvidia-smi: all queries, pure parsers of the answers, and which GPUs are in use; and Xids, what the driver wrote of
GPU faults into the kernel's log.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..processes import run_program
from ..quick_dataclass import dataclass
from ..records import GpuSample, QueryAnswer

TIMEOUT = 20.0  # seconds; a cold driver needs several
_CSV = "--format=csv,noheader,nounits"
QUERY_GPUS = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version,memory.used,memory.total", _CSV]
QUERY_APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", _CSV]
_HEALTH = "index,pci.bus_id,mig.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending"
QUERY_HEALTH = ["nvidia-smi", "--query-gpu=" + _HEALTH, _CSV]
QUERY_REMAPPED = ["nvidia-smi", "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure", _CSV]
# Values of a GpuSample, and the PCI address. Newer drivers still know the older name of the event reasons.
_SAMPLED = {
    "gpu": "index", "uuid": "uuid", "used": "memory.used", "total": "memory.total", "bus": "pci.bus_id",
    "utilization": "utilization.gpu", "watts": "power.draw", "celsius": "temperature.gpu", "sm_mhz": "clocks.sm",
    "slowed": "clocks_throttle_reasons.active", "corrected": "ecc.errors.corrected.volatile.total",
    "uncorrected": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
QUERY_SAMPLES = ["nvidia-smi", "--query-gpu=" + ",".join(_SAMPLED.values()), _CSV]
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


def parse_gpus(text: str) -> List[Gpu]:
    """The output of QUERY_GPUS. Lines that describe no GPU (an error about one that fell off the bus) are skipped."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 6 and cells[0].isdecimal():
            index, uuid, *name, driver, used, total = cells  # a product's name may contain a comma
            gpus.append(Gpu(int(index), uuid, ", ".join(name), driver, _number(used), _number(total)))
    return sorted(gpus, key=lambda gpu: gpu.index)


def parse_apps(text: str) -> List[GpuProcess]:
    """The output of QUERY_APPS. Sentences such as `No running processes found` are skipped."""
    rows = [[cell.strip() for cell in line.split(",", 3)] for line in text.splitlines()]  # a command may have commas
    return [GpuProcess(row[0], int(row[1]), _number(row[2]), row[3]) for row in rows if row[3:] and row[1].isdecimal()]


def parse_samples(text: str, at: float) -> List[Tuple[GpuSample, str]]:
    """The output of QUERY_SAMPLES, each with its GPU's PCI address. Lines that describe no GPU are skipped."""
    samples = []
    for cells in ([cell.strip() for cell in line.split(",")] for line in text.splitlines()):
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


DMESG, JOURNAL = "dmesg", "journal"
# The ring buffer forgets, the journal keeps the whole boot; a user may be allowed to read only one of them.
XID_QUERIES: Dict[str, Sequence[str]] = {
    DMESG: ["dmesg", "--kernel", "--level", "emerg,alert,crit,err,warn", "--time-format", "iso"],
    JOURNAL: ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--grep", "NVRM: Xid"],
}
# A program's own mistake causes these; the GPU is well.
PROGRAM_ERRORS = {
    13: "graphics exception", 31: "bad memory access", 43: "program stopped", 45: "program ended by force",
}  # fmt: skip
HARDWARE_ERRORS = {
    48: "double-bit ECC error", 63: "row or page of its memory taken out", 64: "broken memory could not be taken out",
    74: "NVLink error", 79: "fallen off the bus", 92: "many corrected ECC errors", 94: "contained ECC error",
    95: "uncontained ECC error", 119: "its firmware (GSP) does not answer", 120: "its firmware (GSP) failed",
    140: "unrecovered ECC error", 149: "NVLink error",
}  # fmt: skip
_LINE = re.compile(
    r"(?:(?P<when>\d{4}-\d\d-\d\dT[\d:]{8})(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
    r".*NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
)


# -- Xids --------------------------------------------------------------------------------------------------------------


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
    try:
        return datetime.strptime("%s%s" % (when, zone), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None
