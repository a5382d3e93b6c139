"""nvidia-smi: all that it is asked, pure parsers of its answers, and which GPUs are in use.

With a driver in trouble nvidia-smi hangs, sometimes where no signal reaches it. So it runs in a thread of its own, and
while one hangs no other is started: it would hang too, and might stay for ever.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import threading
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import process_tree
from ..programs import ask
from ..quick_dataclass import dataclass
from ..records import GpuSample, QueryAnswer
from .xids import bus_id

TIMEOUT = 20.0  # seconds; a cold driver needs several
_CSV = "--format=csv,noheader,nounits"
QUERY_GPUS = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version,memory.used,memory.total", _CSV]
QUERY_APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", _CSV]
_HEALTH = "index,pci.bus_id,mig.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending"
QUERY_HEALTH = ["nvidia-smi", "--query-gpu=" + _HEALTH, _CSV]
_REMAPPED = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure"
QUERY_REMAPPED = ["nvidia-smi", "--query-remapped-rows=" + _REMAPPED, _CSV]
# The processes on a GPU change seldom, and each query costs as much as one for all GPUs' values.
STREAM_APPS = [*QUERY_APPS, "-lms", "2000"]
HELP = ["nvidia-smi", "--help-query-gpu"]
# What is sampled once a second, and the names that drivers know it by, the newest first. One field that a driver does
# not know makes nvidia-smi refuse the whole query, so its help says which there are.
_SAMPLED: Dict[str, Tuple[str, ...]] = {
    "index": ("index",),
    "uuid": ("uuid", "gpu_uuid"),
    "used": ("memory.used",),
    "total": ("memory.total",),
    "bus": ("pci.bus_id", "gpu_bus_id"),
    "utilization": ("utilization.gpu",),
    "watts": ("power.draw",),
    "celsius": ("temperature.gpu",),
    "sm_mhz": ("clocks.sm", "clocks.current.sm"),
    "slowed": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "corrected": ("ecc.errors.corrected.volatile.total",),
    "uncorrected": ("ecc.errors.uncorrected.volatile.total",),
}
_ALWAYS = ("index", "uuid", "used", "total")  # every driver knows them
# Bits of clocks_event_reasons.active, as in nvml.h. An idle GPU and clocks that were set by hand are no throttling.
_SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
_THERMAL_OR_BRAKE = 0x40 | 0x80  # of these a hardware slowdown is the effect
# An idle GPU holds some hundred MiB for its driver, more under MPS or a display. nvidia-smi does not list the processes
# of other containers; only the memory in use shows them.
HELD_MIB = 1024
_MIB_PER_GIB = 1024
# Daemons that keep a driver loaded or share a GPU: always there, and no jobs.
_DAEMONS = ("nvidia-cuda-mps-server", "Xorg")
NO_PROGRAM = "no nvidia-smi on PATH"


@dataclass(frozen=True)
class Gpu:
    """Memory in MiB; None where the driver does not report it (`[N/A]`, MIG without permission)."""

    index: int
    uuid: str
    name: str
    driver: str
    used: Optional[int]
    total: Optional[int]


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on a GPU. `used` in MiB, or None."""

    gpu_uuid: str
    pid: int
    used: Optional[int]
    name: str


@dataclass(frozen=True)
class GpuSnapshot:
    """GPUs and their processes at one moment. `problem` is why there are none, in nvidia-smi's own words."""

    gpus: Tuple[Gpu, ...] = ()
    apps: Tuple[GpuProcess, ...] = ()
    problem: str = ""

    @property
    def ids(self) -> List[int]:
        return [gpu.index for gpu in self.gpus]


def simulated_gpus(count: int) -> GpuSnapshot:
    """`count` simulated GPUs, all free."""
    return GpuSnapshot(tuple(Gpu(index, "simulated-%d" % index, "simulated", "", 0, None) for index in range(count)))


def parse_gpus(text: str) -> List[Gpu]:
    """The output of QUERY_GPUS. Lines that describe no GPU (an error about one that fell off the bus) are skipped."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 6 or not fields[0].isdigit():
            continue
        index, uuid, *name, driver, used, total = fields  # a product's name may contain a comma
        gpus.append(Gpu(int(index), uuid, ", ".join(name), driver, _integer(used), _integer(total)))
    return sorted(gpus, key=lambda gpu: gpu.index)


def parse_apps(text: str) -> List[GpuProcess]:
    """The output of QUERY_APPS. Sentences such as `No running processes found` are skipped."""
    processes = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",", 3)]  # a command line may contain commas
        if len(fields) == 4 and fields[1].isdigit():
            processes.append(GpuProcess(fields[0], int(fields[1]), _integer(fields[2]), fields[3]))
    return processes


def sampled_fields(help_text: str) -> Dict[str, str]:
    """{value: its field} of what this driver knows, by the output of HELP."""
    known = set(re.findall(r'"([a-z0-9_.]+)"', help_text))
    chosen = ((value, [name for name in names if name in known]) for value, names in _SAMPLED.items())
    return {value: [*names, _SAMPLED[value][0]][0] for value, names in chosen if names or value in _ALWAYS}


def stream_samples(fields: Mapping[str, str]) -> List[str]:
    return ["nvidia-smi", "--query-gpu=" + ",".join(fields.values()), _CSV, "-lms", "1000"]


def parse_sample(fields: Mapping[str, str], line: str, at: float) -> Optional[Tuple[GpuSample, str]]:
    """A line of the stream, and the GPU's PCI address; None for one that is about no GPU, such as an error about a lost
    one."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(fields) or not cells[0].isdigit() or not cells[1]:
        return None
    values = {value: cells[at] for at, value in enumerate(fields)}
    sample = GpuSample(
        round(at, 2),
        int(cells[0]),
        cells[1],
        used=_integer(values["used"]),
        total=_integer(values["total"]),
        utilization=_number(values.get("utilization", "")),
        watts=_number(values.get("watts", "")),
        celsius=_integer(values.get("celsius", "")),
        sm_mhz=_integer(values.get("sm_mhz", "")),
        slowed=dict.fromkeys(slowdowns(values.get("slowed", "")), 1.0),
        corrected=_integer(values.get("corrected", "")),
        uncorrected=_integer(values.get("uncorrected", "")),
    )
    return sample, bus_id(values.get("bus", ""))


def slowdowns(text: str) -> List[str]:
    """Why a clock is held down, by a mask as 0x0000000000000004."""
    try:
        mask = int(text, 16)
    except ValueError:
        return []
    if mask & _THERMAL_OR_BRAKE:
        mask &= ~0x8
    return [reason for bit, reason in _SLOWDOWNS.items() if mask & bit]


def gpus_in_use(gpus: Tuple[Gpu, ...], apps: Tuple[GpuProcess, ...]) -> Dict[int, str]:
    """{GPU id: description of its use}, whether or not its user holds a lock."""
    in_use = {}
    for gpu in gpus:
        on_gpu = (app for app in apps if app.gpu_uuid == gpu.uuid or app.gpu_uuid.startswith("MIG-%s/" % gpu.uuid))
        users = [app for app in on_gpu if os.path.basename(app.name) not in _DAEMONS]
        if users:
            in_use[gpu.index] = "%s in use by %s" % (_memory(users, gpu), ", ".join(map(_describe, users)))
        elif gpu.used is not None and gpu.used > HELD_MIB:
            in_use[gpu.index] = "%s of its memory held by a process that nvidia-smi does not show" % _gib(gpu.used)
    return in_use


def query_gpus() -> GpuSnapshot:
    """Run nvidia-smi once, for up to TIMEOUT seconds per query."""
    return _snapshot(lambda argv: ask({"": argv}, TIMEOUT)[""])


class GpuMonitor:
    """Queries nvidia-smi every `interval` seconds in a thread, so that reading `latest` never blocks. `latest` is None
    until the first result.

    A later query that fails or hangs only sets `problem`: an unknown state does not make GPUs free.
    """

    def __init__(self, interval: float) -> None:
        self.latest: Optional[GpuSnapshot] = None
        self.problem = ""
        self._interval = interval
        self._stopped = threading.Event()
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._thread = threading.Thread(target=self._run, name="nvidia-smi", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait for the thread: a program that cannot be killed would keep the run from ending."""
        self._stopped.set()
        self._kill()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._publish(_snapshot(self._ask))
            self._stopped.wait(self._interval)

    def _publish(self, snapshot: GpuSnapshot) -> None:
        self.problem = snapshot.problem
        if self.latest is None or self.latest.problem or not snapshot.problem:
            self.latest = snapshot

    def _ask(self, argv: Sequence[str]) -> QueryAnswer:
        """Waits for the program, however long it hangs, until the monitor is closed."""
        try:
            process = self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return QueryAnswer(None, "", "nvidia-smi: %s" % error.strerror)
        if self._stopped.is_set():
            self._kill()
        for timeouts in itertools.count(1):
            try:
                out = process.communicate(timeout=TIMEOUT)[0].decode(errors="replace")
                break
            except subprocess.TimeoutExpired:
                self._publish(GpuSnapshot(problem="no answer from nvidia-smi within %g s" % (timeouts * TIMEOUT)))
        return QueryAnswer(process.returncode, out, "")

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process_tree.kill_and_reap(process)


def _snapshot(ask_it: Callable[[Sequence[str]], QueryAnswer]) -> GpuSnapshot:
    answer = ask_it(QUERY_GPUS)
    gpus = tuple(parse_gpus(answer.out)) if answer.code == 0 else ()
    apps = ask_it(QUERY_APPS) if gpus else answer
    if gpus and apps.code == 0:
        return GpuSnapshot(gpus, tuple(parse_apps(apps.out)))
    return GpuSnapshot(problem=NO_PROGRAM if apps.is_missing else apps.last_line)


def _memory(users: List[GpuProcess], gpu: Gpu) -> str:
    sizes = [app.used for app in users if app.used is not None]
    used = sum(sizes) if sizes else gpu.used
    return "memory" if used is None else _gib(used)


def _describe(app: GpuProcess) -> str:
    return "pid %d (%s)" % (app.pid, app.name) if app.name and not app.name.startswith("[") else "pid %d" % app.pid


def _gib(mib: int) -> str:
    return "%d MiB" % mib if mib < _MIB_PER_GIB else "%.0f GiB" % (mib / _MIB_PER_GIB)


def _number(text: str) -> Optional[float]:
    return float(text) if re.match(r"\d{1,12}(\.\d{1,9})?\Z", text) else None


def _integer(text: str) -> Optional[int]:
    return int(text) if re.match(r"\d{1,12}\Z", text) else None
