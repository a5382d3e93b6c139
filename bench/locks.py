"""GPU locks under contention: the sample's lock script with its agent, GPUs that the agent itself takes, and a
stand-in for CI's script (all or nothing, files opened with a+, random sleeps), for 1, 2, 4 and 8 of eight simulated
GPUs in a directory of their own, while agents, scripts and stand-ins are killed at random. All times are a hundredth
of the real ones: the script sleeps up to 0.05 s instead of 5.

    python bench/locks.py [--acquisitions N]      one JSON line
    contention: `held_twice` and `leaked` have to be 0. Whoever has a GPU puts its name into a file that must not exist.
    Exit code 1 if a GPU was held twice or a lock was leaked.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import math
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci_tasks.agent import processes  # noqa: E402
from ci_tasks.agent.gpus import lock_files  # noqa: E402
from ci_tasks.agent.gpus.run_resources import RunResources  # noqa: E402
from ci_tasks.agent.records import AGENT, JOB, GpuRequest, Plan  # noqa: E402

SAMPLE = ROOT / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
GPUS = 8
SLEEP = 0.05
HOLD = (0.002, 0.02)
POLL_SECONDS = 0.01

# What the sample's script runs: put our name on each GPU, hold, look whether it is still there.
COMMAND = """
cd "$BENCH"; IFS=,
for gpu in $CUDA_VISIBLE_DEVICES; do
  if ! (set -C; echo $TOKEN > owner/$gpu) 2> /dev/null; then
    other=; read -r other < owner/$gpu
    [ -e killed/$other ] || echo "$gpu $other $TOKEN" >> twice
    echo $TOKEN > owner/$gpu
  fi
done
sleep $HOLD
for gpu in $CUDA_VISIBLE_DEVICES; do
  other=; read -r other < owner/$gpu
  [ "$other" = $TOKEN ] || [ -e killed/$TOKEN ] || echo "$gpu $TOKEN $other" >> twice
  rm -f owner/$gpu
done
"""


@dataclass
class Arena:
    """The directory of one figure, and the pipe through which contenders tell of each acquisition."""

    path: Path
    read: int = -1
    write: int = -1
    script: Path = field(init=False)

    def __post_init__(self) -> None:
        for name in ("owner", "killed", "locks"):
            (self.path / name).mkdir(parents=True)
        self.read, self.write = os.pipe()
        text = SAMPLE.read_text()
        quick = text.replace("LONGEST_SLEEP = 0.5", f"LONGEST_SLEEP = {SLEEP}").replace("uniform(0.05", "uniform(0.0")
        quick = quick.replace("wait(timeout=0.2)", "wait(timeout=0.01)")
        assert quick.count(str(SLEEP)) == 1 and "uniform(0.0," in quick, "the sample's script has changed"
        self.script = self.path / "gpu_lock_exec.py"
        self.script.write_text(quick)

    def request(self, count: int, by: str) -> GpuRequest:
        return GpuRequest(count, by, str(self.path / "locks" / "custom_gpu_lock_{gpu_id}.lock"), GPUS, GPUS)

    def tell(self, kind: str, waited: float) -> None:
        os.write(self.write, f"{kind} {waited:.4f}\n".encode())  # short enough to arrive whole

    def hold(self, token: str, held: list[int], seconds: float) -> None:
        for gpu in held:
            self._put(gpu, token)
        time.sleep(seconds)
        for gpu in held:
            if (self.path / "owner" / str(gpu)).read_text().strip() != token and not self.is_killed(token):
                self.twice(f"{gpu} {token} was replaced")
            (self.path / "owner" / str(gpu)).unlink(missing_ok=True)

    def twice(self, line: str) -> None:
        with open(self.path / "twice", "a") as out:
            out.write(line + "\n")

    def is_killed(self, token: str) -> bool:
        return (self.path / "killed" / token).exists()

    def leaked(self) -> int:
        """How many locks cannot be taken now that nobody is left."""
        request = self.request(1, JOB)
        taken = [lock_files.try_lock(path) for path in request.paths.values()]
        return sum(descriptor is None for descriptor in taken)

    def count_twice(self) -> int:
        path = self.path / "twice"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def _put(self, gpu: int, token: str) -> None:
        path = self.path / "owner" / str(gpu)
        try:
            with open(path, "x") as out:
                out.write(token)
        except FileExistsError:
            other = path.read_text().strip() if path.exists() else ""
            if not self.is_killed(other):
                self.twice(f"{gpu} {other} {token}")
            path.write_text(token)


# -- contenders: each is a process that takes GPUs again and again ---------------------------------------------------


def stand_in(arena: Arena, token: str, count: int, hold: tuple[float, float]) -> None:
    """CI's protocol."""
    paths = arena.request(count, JOB).paths
    while True:
        begun = time.monotonic()
        while len(held := _all_or_nothing(paths, count)) < count:
            time.sleep(SLEEP * random.random())
        arena.tell(f"script {count}", time.monotonic() - begun)
        arena.hold(token, list(held), random.uniform(*hold))
        for file in held.values():
            file.close()
        time.sleep(SLEEP * random.random() / 5)


def _all_or_nothing(paths: dict[int, str], count: int) -> dict[int, IO[str]]:
    held: dict[int, IO[str]] = {}
    for gpu, path in paths.items():
        file: IO[str] = open(path, "a+")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        held[gpu] = file
        if len(held) == count:
            return held
    for file in held.values():
        file.close()
    return {}


def by_agent(arena: Arena, token: str, count: int) -> None:
    while True:
        begun = time.monotonic()
        resources = RunResources(Plan(gpu_locks=arena.request(count, AGENT)), POLL_SECONDS)
        while resources.gpu_ids is None:
            resources.poll()
            time.sleep(POLL_SECONDS if resources.gpu_ids is None else 0)
        arena.tell(f"agent {count}", time.monotonic() - begun)
        arena.hold(token, resources.gpu_ids, random.uniform(*HOLD))
        resources.close()
        time.sleep(SLEEP * random.random())


def by_script(arena: Arena, token: str, count: int) -> None:
    """The sample's script as the job, and its agent."""
    run_dir = arena.path / token
    run_dir.mkdir()
    while True:
        begun = time.monotonic()
        resources = RunResources(Plan(gpu_locks=arena.request(count, JOB)), POLL_SECONDS)
        resources.poll()
        job = subprocess.Popen(
            [sys.executable, "-IS", str(arena.script), "--count", str(count), "--", "sh", "-c", COMMAND],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a killed agent's script complains about its pipe
            env={
                "PATH": os.environ["PATH"],
                "BENCH": str(arena.path),
                "TOKEN": token,
                "HOLD": f"{random.uniform(*HOLD):.3f}",
                "CI_TASKS_GPU_LOCK_DIR": str(arena.path / "locks"),
                "CI_TASKS_RUN_DIR": str(run_dir.resolve()),
            },
        )
        assert job.stdout is not None
        is_reported = False
        while chunk := _output(job.stdout, POLL_SECONDS):
            resources.read_output(chunk.strip(b"\0"))
            resources.poll()
            if resources.gpu_ids is not None and not is_reported:
                is_reported = True
                arena.tell(f"job {count}", time.monotonic() - begun)
        resources.close()
        if job.wait() and not arena.is_killed(token):
            raise SystemExit(f"the lock script ended with {job.returncode}")
        job.stdout.close()


def _output(pipe: IO[bytes], seconds: float) -> bytes:
    """What there is to read; b"\\0" where there is nothing yet, and nothing at the end."""
    return os.read(pipe.fileno(), 4096) if select.select([pipe], [], [], seconds)[0] else b"\0"


# -- the two figures -------------------------------------------------------------------------------------------------

Work = Callable[[Arena, str], None]


@dataclass
class Contender:
    name: str
    work: Work
    token: str = ""
    pid: int = 0

    def start(self, arena: Arena, numbers: itertools.count[int]) -> None:
        self.token = f"{self.name}-{next(numbers)}"
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                random.seed()
                self.work(arena, self.token)
            except BaseException as error:
                print(f"{self.token}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)

    def kill(self, arena: Arena) -> None:
        """As a person ends a run whose agent was killed: what is left of it goes too."""
        (arena.path / "killed" / self.token).touch()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        processes.kill_all(str((arena.path / self.token).resolve()), None)

    def kill_script(self, arena: Arena) -> None:
        """A job, its script first, while its agent lives."""
        (arena.path / "killed" / self.token).touch()
        processes.kill_all(str((arena.path / self.token).resolve()), None)


def contention(path: Path, wanted: int) -> dict[str, float | str | int]:
    arena, numbers, begun = Arena(path), itertools.count(), time.monotonic()
    contenders = [Contender(f"script{count}", _bind(stand_in, count, HOLD)) for count in (1, 1, 2, 2, 4)]
    contenders += [Contender(f"agent{count}", _bind(by_agent, count)) for count in (1, 2, 4, 8)]
    contenders += [Contender(f"job{count}", _bind(by_script, count)) for count in (2, 8)]
    for contender in contenders:
        contender.start(arena, numbers)
    waits: dict[str, list[float]] = {}
    kills, next_kill, rest = 0, 0.0, b""
    while sum(map(len, waits.values())) < wanted:
        rest = _gather(arena, rest, waits)
        if time.monotonic() >= next_kill:
            next_kill = time.monotonic() + random.uniform(0.02, 0.4)
            victim = random.choice(contenders)
            if victim.name.startswith("job") and random.random() < 0.5:
                victim.kill_script(arena)
            victim.kill(arena)
            victim.start(arena, numbers)
            kills += 1
    for contender in contenders:
        contender.kill(arena)
    eights = [wait for kind, found in waits.items() if kind.endswith(" 8") for wait in found]
    return {
        "figure": "contention",
        "acquisitions": sum(map(len, waits.values())),
        **{kind.replace(" ", "_"): len(waits[kind]) for kind in sorted(waits)},
        "kills": kills,
        "held_twice": arena.count_twice(),
        "leaked": arena.leaked(),
        "longest_wait_of_8_s": round(max(eights, default=math.inf), 2),
        "seconds": round(time.monotonic() - begun, 1),
    }


def _bind(work: Callable[..., None], *words: object) -> Work:
    return lambda arena, token: work(arena, token, *words)


def _gather(arena: Arena, rest: bytes, waits: dict[str, list[float]]) -> bytes:
    if not select.select([arena.read], [], [], 0.01)[0]:
        return rest
    *lines, rest = (rest + os.read(arena.read, 65536)).split(b"\n")
    for line in lines:
        kind, _, waited = line.decode().rpartition(" ")
        waits.setdefault(kind, []).append(float(waited))
    return rest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acquisitions", type=int, default=10000, help="in the contention run (default 10,000)")
    given = parser.parse_args()
    bad = False
    with tempfile.TemporaryDirectory() as directory:
        figure = contention(Path(directory, "contention"), given.acquisitions)
        print(json.dumps(figure), flush=True)
        bad = bool(figure["held_twice"] or figure["leaked"])
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
