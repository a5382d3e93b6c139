"""Where a trial of `bench/faults.py` happens: a sshd and the road to it, a checkout, a home, a client; and one Docker
daemon, which serves one trial at a time.

The parts are those of the tests, `tests/parts/`. What a trial has is below one directory, so that what is left
can be seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.parts import Missing, dockerd, git, proxy, registry
from tests.parts.processes import with_variable
from tests.parts.sshd import Sshd

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 60.0
STOP = threading.Event()  # somebody has pressed ^C: every trial comes to its end
LINES = 150
PACK = 6 << 20  # bytes of a file that makes the sync long enough to be hit
MADE = 900_000  # lines of an artifact that does the same for the way home
GPUS = 8
LOCK_SCRIPT = "tests/ci/gpu_lock_exec.py"


JOB_STEPS = """\
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {matrix: {info: [ROWS]}}
    steps:
      - uses: actions/checkout@v4
      - run: |
          code=0
          COMMAND bash tests/${{ matrix.info.test_file }} || code=$?
          seq 1 MADE > "$CI_TASKS_RUN_DIR/artifacts/made"
          exit $code
"""
COMMANDS = {
    "plain": "python tests/ci/gpu_lock_exec.py --count ${{ matrix.info.num_gpus }} --",
    "boxed": "docker run --pull=always --rm --network host --ipc=host --memory=48m --memory-swap=48m "
    '-v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" IMAGE',
}
JOB = """\
n=0
while [ $n -lt LINES ]; do
  n=$((n + 1))
  echo "line $n of the job: $((n * n * n))"
  if [ $((n % 10)) = 0 ]; then sleep PAUSE; fi
  if [ -e eat ]; then eaten=$(seq 1 20000000); fi
done
echo "step 0: {'lines': $n}"
exit CODE
"""


def until(
    condition: Callable[[], Any], what: str, seconds: float = TIMEOUT_SECONDS, over: Callable[[], Any] = lambda: False
) -> Any:
    """The first true value of `condition`; not waited for any longer when `over`."""
    deadline, ended = time.monotonic() + seconds, False
    while time.monotonic() < deadline and not ended:
        ended = over()
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    raise Unreached(f"never came: {what}")


class Unreached(Exception):
    """The trial did not come to where its fault belongs."""


class Daemon(dockerd.Daemon):
    """One trial at a time has it."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = threading.Lock()
        self._layer = dockerd.image_tar()

    @contextlib.contextmanager
    def image(self) -> Iterator[tuple[str, proxy.TcpProxy]]:
        """The name of an image in a registry, and the proxy before that."""
        with registry.serving(self._layer) as (name, _):
            port = int(name.split("/")[0].rpartition(":")[2])
            with proxy.TcpProxy(("127.0.0.1", port)) as road:
                yield f"127.0.0.1:{road.port}/slime:latest", road

    def containers(self, below: Path) -> list[str]:
        words = ["ps", "--all", "--format", '{{.Names}} {{.Label "ci-tasks.dir"}}']
        return [line for line in dockerd.docker(self.host, *words).splitlines() if str(below) in line]


def job_says() -> bytes:
    lines = [f"line {n} of the job: {n * n * n}\n" for n in range(1, LINES + 1)]
    return "".join([*lines, f"step 0: {{'lines': {LINES}}}\n"]).encode()


@dataclass
class World:
    """One trial's: `rows` jobs of one label, the same work in each. `road` leads to the box, `image_road` to the
    registry."""

    path: Path
    chance: random.Random
    daemon: Daemon | None
    code: int = 0
    client: subprocess.Popen[bytes] | None = None
    notes: list[str] = field(default_factory=list)
    steps_clock: bool = False
    rows: int = 1
    after: Callable[[], object] | None = None  # what ends the fault, once the client has ended
    _locks: list[int] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> World:
        self.ssh = Sshd(self.path / "ssh")
        self.clock = HostClock(self.path / "clock") if self.steps_clock else None
        self.box = self.ssh.start("box", more=self.clock.sshd_config if self.clock else "")
        self.road = proxy.TcpProxy((self.box.ip, self.box.port))
        self.ssh.alias("far", self.box, HostName="127.0.0.1", Port=str(self.road.port))
        self.home, self.there = self.path / "home", self.path / "there"
        for small in (self.home, self.there):
            small.mkdir()
        self.checkout = self.path / "checkout"
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()
        if self.client is not None and self.client.poll() is None:
            self.client.kill()
            self.client.wait()
        self.road.close()
        self.ssh.stop()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._stack.close()
        if self.daemon is not None:
            self.daemon.reset()

    def make_small(self, directory: Path, megabytes: int) -> None:
        """A disk of its own, that can be filled."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)], check=True)
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(directory)], check=False)

    def fill(self, directory: Path) -> Callable[[], None]:
        """Not a byte is left on that disk, until what is returned is called."""
        filler = directory / "filler"
        with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while out.write(b"x" * size) == size:
                        pass
        return filler.unlink

    def prepare(self) -> None:
        """The checkout, and where it is to run."""
        image = "no-image"
        if self.daemon is not None:
            image, self.image_road = self._stack.enter_context(self.daemon.image())
        gpus, numbers = 2 if self.daemon is None else 0, range(1, self.rows + 1)
        rows = ", ".join(f"{{test_file: job{n}.sh, num_gpus: {gpus}}}" for n in numbers)
        steps = JOB_STEPS.replace("COMMAND", COMMANDS[self.label]).replace("IMAGE", image)
        steps = steps.replace("MADE", str(MADE)).replace("ROWS", rows)
        job = JOB.replace("LINES", str(LINES)).replace("CODE", str(self.code))
        job = job.replace("PAUSE", "0.1" if self.rows == 1 else "0.6")  # several are to run at once for a while
        files = {f"tests/job{number}.sh": job for number in numbers}
        files[".github/workflows/pr-test.yml"] = f"on: pull_request\njobs:\n  e2e-test-{self.label}:\n{steps}"
        files[LOCK_SCRIPT] = (ROOT / "examples/tiny-slime" / LOCK_SCRIPT).read_text()
        self.checkout.mkdir()
        (self.checkout / "noise").write_bytes(self.chance.randbytes(PACK))
        git.repository(self.checkout, files)
        host: dict[str, Any] = {"kind": "ssh", "address": "far", "gpus": GPUS, "workspace": str(self.there)}
        if self.daemon is None:
            host |= {"runtime": "none", "simulate": True}
        else:
            host |= {"runtime": "docker", "pull": "always", "env": self.daemon.environ}
        (self.path / "hosts.yaml").write_text(json.dumps({"hosts": {"box": host}}))

    @property
    def label(self) -> str:
        return "plain" if self.daemon is None else "boxed"

    # -- the client --------------------------------------------------------------------------------------------------

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "GIT_"))}
        ours = {"CI_TASKS_HOME": str(self.home), "CI_TASKS_HOSTS": str(self.path / "hosts.yaml")}
        ours["XDG_RUNTIME_DIR"] = str(self.path.parent)  # `clean` of another trial closes no connection of this one
        with (self.path / "client").open("ab") as out:
            out.write(f"$ ci-tasks {' '.join(words)}\n".encode())
            out.flush()
            self.client = subprocess.Popen(
                [sys.executable, "-c", "from ci_tasks.cli.program import main; main()", *words],
                cwd=self.checkout,
                env={**kept, **self.ssh.env, **ours, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return self.client

    def reaches(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for it while the client runs."""
        return until(condition, what, over=lambda: STOP.is_set() or not self.client or self.client.poll() is not None)

    def finish(self) -> int:
        """The exit code of the client; it gets its time and no more."""
        assert self.client is not None
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline and not STOP.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.client.wait(0.2)
                return code if code >= 0 else 128 - code  # as a shell says it
        self.client.kill()
        self.client.wait()
        raise Unreached("the client does not end")

    def ci_tasks(self, *words: str) -> int:
        self.start(*words)
        return self.finish()

    def output(self) -> str:
        return (self.path / "client").read_text(errors="replace")

    # -- what is where -----------------------------------------------------------------------------------------------

    def run_there(self) -> Path | None:
        """The first row's."""
        return next(iter(sorted(self.there.glob("runs/*/01"))), None)

    def runs_here(self) -> list[Path]:
        return sorted(self.home.glob("runs/*/[0-9][0-9]"))

    def rows_that_write(self) -> list[Path]:
        return [log for log in self.there.glob("runs/*/*/log") if b"line 10 of the job" in log.read_bytes()]

    def status_there(self) -> dict[str, Any]:
        with contextlib.suppress(ValueError):
            return dict(json.loads(self.text_there("status.json")))
        return {}

    def text_there(self, name: str) -> str:
        run = self.run_there()
        try:
            return (run / name).read_text(errors="replace") if run else ""
        except OSError:
            return ""

    def lock_paths(self) -> list[Path]:
        return [self.there / f"simulated-gpus/custom_gpu_lock_{gpu}.lock" for gpu in range(GPUS)]

    def lock(self, how_many: int) -> None:
        """Take simulated GPUs, as another run would."""
        (self.there / "simulated-gpus").mkdir(exist_ok=True)
        for path in self.lock_paths()[:how_many]:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._locks.append(handle)

    def unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def locked(self) -> list[str]:
        """Pretend GPUs that somebody has."""
        found = []
        for path in [*self.lock_paths(), *self.there.glob("simulated-gpus/*turn*")]:
            if path.exists():
                with path.open() as handle:
                    try:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        found.append(path.name)
        return found

    def processes(self, start: str = "") -> list[int]:
        """Those of the box: of its runs, or whatever was started there."""
        return with_variable(start or f"HOME={self.box.home}")


# -- a host whose clock is wrong ---------------------------------------------------------------------------------------

COMPILER = shutil.which("cc") or shutil.which("gcc")

# A time of day that can be stepped, and nothing else: what counts seconds goes on, and files have the kernel's time.
# (libfaketime makes Python's sleep fail where it leaves the monotonic clock alone.)
_LIBRARY = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long step(void) {
    long seconds = 0;
    const char *path = getenv("SECONDS_AHEAD_FILE");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += step();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec t;
    int result = clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec; now->tv_usec = t.tv_nsec / 1000;
    return result;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
"""


class HostClock:
    """`sshd_config` has the lines that give a server this clock."""

    def __init__(self, directory: Path) -> None:
        if COMPILER is None:
            raise Missing("not installed: a C compiler (Debian: apt-get install gcc libc6-dev)")
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "seconds-ahead"
        source, library = directory / "clock.c", directory / "clock.so"
        source.write_text(_LIBRARY)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        variables = f"LD_PRELOAD={library} SECONDS_AHEAD_FILE={self._file}"
        self.sshd_config = f'ForceCommand env {variables} sh -c "$SSH_ORIGINAL_COMMAND"'
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        """The host's clock, as far as this from the true one."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds}\n")
        beside.replace(self._file)
