"""The GPUs of this host: the question put to nvidia-smi, a pure parser of its answer, and which of them are in use.

A driver in trouble makes nvidia-smi hang, at times where no signal reaches it: it is asked in a session and a thread of
its own, and given up after a while.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading
import time
from typing import Dict, List, Optional, Tuple, Union

PATIENCE = 20.0  # seconds; a cold driver needs several
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
# An idle GPU holds some hundred MiB for its driver, more under MPS or a display; what a process of another container
# holds is not in the list of processes, and shows only here.
HELD_MIB = 1024
_MIB_PER_GIB = 1024


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Memory in MiB; None where the driver does not say (`[N/A]`, MIG without the right to look)."""

    index: int
    uuid: str
    name: str
    driver: str
    used: Optional[int]
    total: Optional[int]


@dataclasses.dataclass(frozen=True)
class App:
    """A process that computes on a GPU. `used` in MiB, or None."""

    gpu_uuid: str
    pid: int
    used: Optional[int]
    name: str


NO_PROGRAM = "no nvidia-smi on PATH"


@dataclasses.dataclass(frozen=True)
class Sight:
    """What one look showed. `problem` is why there was nothing to see, in nvidia-smi's own words."""

    gpus: Tuple[Gpu, ...] = ()
    apps: Tuple[App, ...] = ()
    problem: str = ""

    @property
    def ids(self) -> List[int]:
        return [gpu.index for gpu in self.gpus]


def pretended(count: int) -> Sight:
    """`count` GPUs that nobody uses."""
    return Sight(tuple(Gpu(index, "pretend-%d" % index, "pretended", "", 0, None) for index in range(count)))


def parse_gpus(text: str) -> List[Gpu]:
    """The lines of QUERY_GPUS; a line that describes no GPU (one that fell off the bus, say) is left out."""
    found = []
    for line in text.splitlines():
        head, tail = line.split(",", 2), line.rsplit(",", 3)  # a product's name may hold a comma
        if len(head) < 3 or len(tail) < 4 or line.count(",") < 5 or not head[0].strip().isdigit():
            continue
        name = head[2].rsplit(",", 3)[0].strip()
        driver, used, total = (part.strip() for part in tail[1:])
        found.append(Gpu(int(head[0]), head[1].strip(), name, driver, _mib(used), _mib(total)))
    return sorted(found, key=lambda gpu: gpu.index)


def parse_apps(text: str) -> List[App]:
    """The lines of QUERY_APPS; sentences such as `No running processes found` are none."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",", 3)]  # a command line may hold commas
        if len(parts) == 4 and parts[1].isdigit():
            found.append(App(parts[0], int(parts[1]), _mib(parts[2]), parts[3]))
    return found


def busy(gpus: Tuple[Gpu, ...], apps: Tuple[App, ...]) -> Dict[int, str]:
    """{GPU id: how it is in use, in words}, whether or not the user holds a lock."""
    found = {}
    for gpu in gpus:
        # A MIG device's processes are listed under the GPU's own uuid, or under `MIG-` and that.
        users = [app for app in apps if app.gpu_uuid == gpu.uuid or app.gpu_uuid.startswith("MIG-%s/" % gpu.uuid)]
        # The daemons that keep a driver loaded or share a GPU are no jobs, and are there all the time.
        users = [app for app in users if os.path.basename(app.name) not in ("nvidia-cuda-mps-server", "Xorg")]
        if users:
            found[gpu.index] = "%s in use by %s" % (_amount(users, gpu), ", ".join(map(_words_of, users)))
        elif gpu.used is not None and gpu.used > HELD_MIB:
            found[gpu.index] = "%s of its memory held by a process that nvidia-smi does not show" % _gib(gpu.used)
    return found


def look() -> Sight:
    """Ask nvidia-smi, for as long as PATIENCE says."""
    return _Asking().look()


class Watch:
    """Looks again and again in a thread, so that whoever reads `latest` never waits. None until the first answer.

    A later look that fails changes nothing but `problem`: GPUs do not become free because nobody can say so.
    """

    def __init__(self, every: float) -> None:
        self.latest: Optional[Sight] = None
        self.problem = ""
        self._every = every
        self._over = threading.Event()
        self._asking = _Asking()
        self._thread = threading.Thread(target=self._go_on, name="nvidia-smi", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait for the thread: a program that cannot be killed would keep the run from ending."""
        self._over.set()
        self._asking.end()

    def _go_on(self) -> None:
        while not self._over.is_set():
            sight = self._asking.look()
            self.problem = sight.problem
            if self.latest is None or self.latest.problem or not sight.problem:
                self.latest = sight
            self._over.wait(self._every)


class _Asking:
    def __init__(self) -> None:
        self._asked: Optional["subprocess.Popen[bytes]"] = None
        self._over = False

    def look(self) -> Sight:
        said = self._ask(QUERY_GPUS)
        if isinstance(said, Sight):
            return said
        found = parse_gpus(said)
        if not found:
            return Sight(problem=_last_line(said))
        apps = self._ask(QUERY_APPS)
        return apps if isinstance(apps, Sight) else Sight(tuple(found), tuple(parse_apps(apps)))

    def end(self) -> None:
        self._over = True
        self._kill()

    def _ask(self, command: List[str]) -> Union[str, Sight]:
        """What it said, or a sight that is only a problem."""
        try:
            asked = self._asked = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that a child of the program, which keeps the pipe open, ends with it
            )
        except FileNotFoundError:
            return Sight(problem=NO_PROGRAM)
        except OSError as error:
            return Sight(problem="nvidia-smi: %s" % error.strerror)
        if self._over:
            self._kill()
        try:
            said = asked.communicate(timeout=PATIENCE)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            self._kill()
            if asked.stdout is not None:
                asked.stdout.close()
            return Sight(problem="no answer from nvidia-smi within %g s" % PATIENCE)
        self._asked = None
        return said if asked.returncode == 0 else Sight(problem=_last_line(said))

    def _kill(self) -> None:
        asked = self._asked
        if asked is None or asked.returncode is not None:
            return
        try:
            os.killpg(asked.pid, signal.SIGKILL)
        except OSError:
            return
        deadline = time.monotonic() + 1  # one that the driver holds stays, and is nobody's to wait for
        while asked.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)


def _amount(users: List[App], gpu: Gpu) -> str:
    known = [app.used for app in users if app.used is not None]
    used = sum(known) if known else gpu.used
    return "memory" if used is None else _gib(used)


def _words_of(app: App) -> str:
    return "pid %d (%s)" % (app.pid, app.name) if app.name and not app.name.startswith("[") else "pid %d" % app.pid


def _gib(mib: int) -> str:
    return "%d MiB" % mib if mib < _MIB_PER_GIB else "%.0f GiB" % (mib / _MIB_PER_GIB)


def _mib(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nvidia-smi said nothing"
