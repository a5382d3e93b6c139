"""GPU locks under contention: the sample's lock script with its agent and, as CI's own runners have it, without one,
and GPUs that the agent itself takes, for 1, 2, 4 and 8 of eight simulated GPUs in a directory of their own, while
agents and scripts are killed at random. All times are a hundredth of the real ones: the script sleeps up to 0.05 s
instead of 5.

    python bench/locks.py [--acquisitions N]      one JSON line
    contention: `held_twice` and `leaked` have to be 0. Whoever has a GPU puts its name into a file that must not exist.
    Exit code 1 if a GPU was held twice or a lock was leaked.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci_tasks.agent import processes  # noqa: E402
from ci_tasks.agent.gpu_locks import RunResources, try_lock  # noqa: E402
from ci_tasks.agent.records import AGENT, JOB, GpuRequest, Plan  # noqa: E402

SAMPLE = ROOT / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
GPUS = 8
SLEEP = 0.05
HOLD = (0.002, 0.02)
POLL_SECONDS = 0.01

# What runs with the GPUs: put our name on each GPU, hold, look whether it is still there.
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

    def request(self, count: int, by: Literal["job", "agent"]) -> GpuRequest:
        return GpuRequest(count, by, str(self.path / "locks" / "custom_gpu_lock_{gpu_id}.lock"), GPUS, GPUS)

    def environ(self, token: str) -> dict[str, str]:
        run_dir = self.path.resolve() / token
        run_dir.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "BENCH": str(self.path), "TOKEN": token, "CI_TASKS_RUN_DIR": str(run_dir)}
        return {**env, "CI_TASKS_GPU_LOCK_DIR": f"{self.path}/locks", "HOLD": f"{random.uniform(*HOLD):.3f}"}

    def script_of(self, token: str, count: int) -> subprocess.Popen[bytes]:
        """The sample's script, started."""
        words = [sys.executable, "-IS", str(self.script), "--count", str(count), "--", "sh", "-c", COMMAND]
        # The script of an agent that was killed complains about its pipe.
        quiet = subprocess.DEVNULL
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=quiet, env=self.environ(token))

    def tell(self, kind: str, waited: float) -> None:
        os.write(self.write, f"{kind} {waited:.4f}\n".encode())  # short enough to arrive whole

    def hold(self, token: str, held: Sequence[int]) -> None:
        env = {**self.environ(token), "CUDA_VISIBLE_DEVICES": ",".join(map(str, held))}
        subprocess.run(["sh", "-c", COMMAND], env=env, check=False)

    def is_killed(self, token: str) -> bool:
        return (self.path / "killed" / token).exists()

    def leaked(self) -> int:
        """How many locks cannot be taken now that nobody is left."""
        request = self.request(1, JOB)
        taken = [try_lock(path) for path in request.paths.values()]
        return sum(descriptor is None for descriptor in taken)

    def count_twice(self) -> int:
        path = self.path / "twice"
        return len(path.read_text().splitlines()) if path.exists() else 0


# -- contenders: each is a process that takes GPUs again and again ---------------------------------------------------


def by_agent(arena: Arena, token: str, count: int) -> None:
    while True:
        begun = time.monotonic()
        resources = RunResources(Plan(gpu_locks=arena.request(count, AGENT)), POLL_SECONDS)
        while resources.gpu_ids is None:
            resources.poll()
            time.sleep(POLL_SECONDS if resources.gpu_ids is None else 0)
        arena.tell(f"agent {count}", time.monotonic() - begun)
        arena.hold(token, resources.gpu_ids)
        resources.close()
        time.sleep(SLEEP * random.random())


def by_script(arena: Arena, token: str, count: int) -> None:
    """The sample's script as the job, and its agent."""
    while True:
        begun, is_reported = time.monotonic(), False
        resources = RunResources(Plan(gpu_locks=arena.request(count, JOB)), POLL_SECONDS)
        resources.poll()
        with arena.script_of(token, count) as job:
            assert job.stdout is not None
            while (chunk := _output(job.stdout)) is None or chunk:
                resources.read_output(chunk or b"")
                resources.poll()
                if resources.gpu_ids is not None and not is_reported:
                    is_reported = True
                    arena.tell(f"job {count}", time.monotonic() - begun)
            resources.close()
        _check(job, arena, token)


def by_script_alone(arena: Arena, token: str, count: int) -> None:
    while True:
        begun = time.monotonic()
        with arena.script_of(token, count) as job:
            assert job.stdout is not None
            if job.stdout.readline():
                arena.tell(f"script {count}", time.monotonic() - begun)
            job.stdout.read()
        _check(job, arena, token)


def _output(pipe: IO[bytes]) -> bytes | None:
    """What there is to read, None if there is nothing yet, and nothing at the end."""
    return os.read(pipe.fileno(), 4096) if select.select([pipe], [], [], POLL_SECONDS)[0] else None


def _check(job: subprocess.Popen[bytes], arena: Arena, token: str) -> None:
    if job.returncode and not arena.is_killed(token):
        raise SystemExit(f"the lock script ended with {job.returncode}")


# -- the figure -----------------------------------------------------------------------------------------------------


@dataclass
class Contender:
    name: str
    work: Callable[[Arena, str, int], None]
    count: int
    token: str = ""
    pid: int = 0

    def start(self, arena: Arena, numbers: itertools.count[int]) -> None:
        self.token = f"{self.name}-{next(numbers)}"
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                random.seed()
                self.work(arena, self.token, self.count)
            except BaseException as error:
                print(f"{self.token}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)

    def kill(self, arena: Arena, script_first: bool = False) -> None:
        """As a person ends a run whose agent was killed: what is left of it goes too. `script_first`: the script dies
        while its agent lives."""
        (arena.path / "killed" / self.token).touch()
        run_dir = str((arena.path / self.token).resolve())
        if script_first:
            processes.kill_all(run_dir, None)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        processes.kill_all(run_dir, None)


def contention(path: Path, wanted: int) -> dict[str, float | str | int]:
    arena, numbers, begun = Arena(path), itertools.count(), time.monotonic()
    kinds = {
        "script": (by_script_alone, (1, 1, 2, 2, 4)),
        "agent": (by_agent, (1, 2, 4, 8)),
        "job": (by_script, (2, 8)),
    }
    contenders = [
        Contender(f"{kind}{count}", work, count) for kind, (work, counts) in kinds.items() for count in counts
    ]
    for contender in contenders:
        contender.start(arena, numbers)
    waits: dict[str, list[float]] = {}
    kills, next_kill, rest = 0, 0.0, b""
    while sum(map(len, waits.values())) < wanted:
        rest = _gather(arena, rest, waits)
        if time.monotonic() >= next_kill:
            next_kill = time.monotonic() + random.uniform(0.02, 0.4)
            victim = random.choice(contenders)
            victim.kill(arena, script_first=random.random() < 0.5)
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
    with tempfile.TemporaryDirectory() as directory:
        figure = contention(Path(directory, "contention"), given.acquisitions)
    print(json.dumps(figure), flush=True)
    return int(bool(figure["held_twice"] or figure["leaked"]))


if __name__ == "__main__":
    raise SystemExit(main())
