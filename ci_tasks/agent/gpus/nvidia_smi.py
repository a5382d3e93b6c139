"""The GPUs of this host: nvidia-smi's queries, pure parsers of its output, and which GPUs are in use.

With a driver in trouble nvidia-smi hangs, sometimes where no signal reaches it. So it runs in a thread of its own, and
while one hangs no other is started: it would hang too, and might stay for ever.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from typing import Callable, Dict, List, Optional, Tuple

from .. import process_tree
from ..quick_dataclass import dataclass

TIMEOUT = 20.0  # seconds; a cold driver needs several
QUERY_GPUS = [
    "nvidia-smi",
    "--query-gpu=index,uuid,name,driver_version,memory.used,memory.total",
    "--format=csv,noheader,nounits",
]
QUERY_APPS = [
    "nvidia-smi",
    "--query-compute-apps=gpu_uuid,pid,used_memory,process_name",
    "--format=csv,noheader,nounits",
]
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
        gpus.append(Gpu(int(index), uuid, ", ".join(name), driver, _mib(used), _mib(total)))
    return sorted(gpus, key=lambda gpu: gpu.index)


def parse_apps(text: str) -> List[GpuProcess]:
    """The output of QUERY_APPS. Sentences such as `No running processes found` are skipped."""
    processes = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",", 3)]  # a command line may contain commas
        if len(fields) == 4 and fields[1].isdigit():
            processes.append(GpuProcess(fields[0], int(fields[1]), _mib(fields[2]), fields[3]))
    return processes


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
    return _GpuQuery().snapshot()


class GpuMonitor:
    """Queries nvidia-smi every `interval` seconds in a thread, so that reading `latest` never blocks. `latest` is None
    until the first result.

    A later query that fails or hangs only sets `problem`: an unknown state does not make GPUs free.
    """

    def __init__(self, interval: float) -> None:
        self.latest: Optional[GpuSnapshot] = None
        self.problem = ""
        self._interval = interval
        self._query = _GpuMonitorQuery(self._publish)
        self._thread = threading.Thread(target=self._run, name="nvidia-smi", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait for the thread: a program that cannot be killed would keep the run from ending."""
        self._query.stop()

    def _run(self) -> None:
        while not self._query.stopped.is_set():
            self._publish(self._query.snapshot())
            self._query.stopped.wait(self._interval)

    def _publish(self, snapshot: GpuSnapshot) -> None:
        self.problem = snapshot.problem
        if self.latest is None or self.latest.problem or not snapshot.problem:
            self.latest = snapshot


class _GpuQuery:
    """Runs nvidia-smi. After TIMEOUT it is killed."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._process: Optional["subprocess.Popen[bytes]"] = None

    def snapshot(self) -> GpuSnapshot:
        try:
            text = self._output(QUERY_GPUS)
            gpus = tuple(parse_gpus(text))
            if not gpus:
                return GpuSnapshot(problem=_last_line(text))
            return GpuSnapshot(gpus, tuple(parse_apps(self._output(QUERY_APPS))))
        except _QueryError as error:
            return GpuSnapshot(problem=str(error))

    def stop(self) -> None:
        self.stopped.set()
        self._kill()

    def _output(self, command: List[str]) -> str:
        """Raises _QueryError."""
        try:
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except FileNotFoundError:
            raise _QueryError(NO_PROGRAM) from None
        except OSError as error:
            raise _QueryError("nvidia-smi: %s" % error.strerror) from None
        if self.stopped.is_set():
            self._kill()
        for timeouts in itertools.count(1):
            try:
                text = process.communicate(timeout=TIMEOUT)[0].decode(errors="replace")
                break
            except subprocess.TimeoutExpired:
                self._timed_out(process, "no answer from nvidia-smi within %g s" % (timeouts * TIMEOUT))
        if process.returncode != 0:
            raise _QueryError(_last_line(text))
        return text

    def _timed_out(self, process: "subprocess.Popen[bytes]", problem: str) -> None:
        """Raises _QueryError where the query is over."""
        self._kill()
        if process.stdout is not None:
            process.stdout.close()
        raise _QueryError(problem)

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process_tree.kill_and_reap(process)


class _GpuMonitorQuery(_GpuQuery):
    """A query that waits for its program, however long it hangs, until it is stopped."""

    def __init__(self, publish: Callable[[GpuSnapshot], None]) -> None:
        super().__init__()
        self._publish = publish

    def _timed_out(self, process: "subprocess.Popen[bytes]", problem: str) -> None:
        self._publish(GpuSnapshot(problem=problem))


class _QueryError(Exception):
    """nvidia-smi gave no result; the message says why."""


def _memory(users: List[GpuProcess], gpu: Gpu) -> str:
    sizes = [app.used for app in users if app.used is not None]
    used = sum(sizes) if sizes else gpu.used
    return "memory" if used is None else _gib(used)


def _describe(app: GpuProcess) -> str:
    return "pid %d (%s)" % (app.pid, app.name) if app.name and not app.name.startswith("[") else "pid %d" % app.pid


def _gib(mib: int) -> str:
    return "%d MiB" % mib if mib < _MIB_PER_GIB else "%.0f GiB" % (mib / _MIB_PER_GIB)


def _mib(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nvidia-smi printed nothing"
