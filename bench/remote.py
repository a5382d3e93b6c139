"""A job on a box against rsync and ssh by hand, side by side in one run: on loopback, and 100 ms of round trip away.

    python bench/remote.py [--only WORD]     one JSON line a figure; exit code 1 where a goal is not met

Every figure is a median of pairs, ours and by hand in turn, so that a machine whose speed drifts does not decide;
`spread` is how far the middle half of the pairs' ratios lies apart.

TMPDIR says on which file system both sides work. Our first run makes a fresh checkout, and each later one starts from
the workspace of the one before, as rsync does from its tree. ext4 without a journal, as some virtual machines have,
looks long for inodes that were not removed a moment ago.

- first line: a tracked file is edited, then `ci-tasks remote` in a fresh process until the job's first own line is
  seen, against `rsync -az --delete` of the same tree and `ssh host 'cd … && bash …'`.
- sync: the same for trees of many files; the first time, and with one file edited.
- log: bytes a second between the first and the last of them, against `ssh host cat`, and the client's peak of memory.

The host is OpenSSH's sshd of tests/parts, on this machine; a proxy of the same tests makes it far. By hand means
Debian's rsync and ssh, with the same key and the same settings.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.hosts import mux
from tests.parts import git, proxy
from tests.parts.sshd import Sshd

PROGRAM = str(Path(sys.executable).with_name("ci-tasks"))
TOKEN = "the tree is as of edit"
WORKFLOW = """\
name: PR Test
on: {pull_request: {branches: [main]}}
jobs:
  bench:
    runs-on: ubuntu-latest
    strategy: {matrix: {info: [{test_file: first.sh}, {test_file: log.sh}]}}
    steps:
      - uses: actions/checkout@v4
      - {name: Execute, shell: bash, run: "bash tests/${{ matrix.info.test_file }}"}
"""
NAMES = ("near", "far")
ROUND_TRIP = 0.1
MB = 1 << 20


PAIRS, LOG_PAIRS = 9, 3
TREES = ((600, 5), (10_000, 3), (100_000, 1))  # files, and pairs of each
LOGS = (20, 200)  # MB


@dataclass
class Seen:
    """What came of a command's output, and when."""

    first: float  # seconds from the command's start to the job's first line
    last: float  # seconds to the job's last byte
    peak: int  # bytes of memory


@dataclass(frozen=True)
class Job:
    """A script of the checkout, and how many bytes it writes after its first line."""

    script: str = "first.sh"
    size: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="first, sync or log")
    words = parser.parse_args()
    missed = 0
    parts = {"first": first_line, "sync": sync, "log": log}
    with tempfile.TemporaryDirectory(prefix="remote-") as scratch:
        world = World(Path(scratch), ROUND_TRIP / 2)
        try:
            for name, part in parts.items():
                for figure in part(world) if words.only in name else ():
                    missed += not figure["met"]
                    print(json.dumps(figure), flush=True)
        finally:
            world.end()
    return int(missed > 0)


def first_line(world: World) -> Iterator[dict[str, Any]]:
    checkout = world.checkout(600)
    pairs = {host: _pairs(world, checkout, host, PAIRS) for host in ("near", "far")}
    yield _seconds("first line, loopback", pairs["near"], 0.5)
    yield _seconds("first line, 100 ms", pairs["far"], 0.15)


def sync(world: World) -> Iterator[dict[str, Any]]:
    for files, count in TREES:
        checkout = world.checkout(files)
        first = []
        for _ in range(count):
            world.forget(checkout.name)
            first += _pairs(world, checkout, "near", 1, warm=False)
        yield _seconds(f"first sync, {files} files", first, 1.0)
        warm = _pairs(world, checkout, "near", max(count, 3))
        yield _seconds(f"warm sync, {files} files", warm, 1.0)


def log(world: World) -> Iterator[dict[str, Any]]:
    checkout, peaks, rates = world.checkout(20), list[float](), list[tuple[float, float]]()
    for megabytes in LOGS:
        whole = _write_log(world, megabytes)
        pairs = _pairs(world, checkout, "near", LOG_PAIRS, Job("log.sh", whole))
        peaks.append(statistics.median(ours.peak for ours, _ in pairs) / MB)
        rates = [(_rate(ours, whole), _rate(hand, whole)) for ours, hand in pairs]
    yield _paired(f"log of {LOGS[1]} MB, MB/s", rates, 0.95, at_least=True)
    flat = peaks[1] <= 1.1 * peaks[0]
    yield _figure(f"memory at {LOGS[1]} MB against that at {LOGS[0]} MB, MB", peaks[1], peaks[0], 1.1, flat)


def _write_log(world: World, megabytes: int) -> int:
    """The log that jobs write; returns its length. It packs 10 times by `zlib` at level 1, as what jobs print does
    (9 times)."""
    rng = random.Random(megabytes)
    path = world.directory / "big.log"
    with path.open("w") as out:
        for step in range(megabytes * MB // _STEP_BYTES):
            for rank in range(4):
                pid, loss, norm, speed = 190_000 + 7 * rank, rng.random(), rng.random(), 999 * rng.random()
                number = {"time": step // 3, "pid": pid, "step": step, "shape": rank * 512}
                out.write(_LINES.format(**number, loss=loss, norm=norm, speed=speed))
    return path.stat().st_size


_LINES = """\
(RolloutManager pid={pid}) [2026-01-01 00:{time:06}] step {step} of 10000: loss {loss:.4f}, grad norm {norm:.6f}
(MegatronTrainRayActor pid={pid}, ip=10.0.0.7) INFO megatron_utils: gather weight, shape ({shape}, 4096), bucket {step}
(SGLangEngine pid={pid}) [2026-01-01 00:{time:06} TP0] Decode batch. #running-req: 64, token: {step}, tps: {speed:.1f}
"""
_STEP_BYTES = 4 * len(_LINES)


def _pairs(
    world: World, checkout: Path, host: str, count: int, job: Job = Job(), warm: bool = True
) -> list[tuple[Seen, Seen]]:
    """Ours and by hand, each on a fresh edit. `warm`: both have been there before."""
    if warm:
        world.ours(checkout, host, job), world.by_hand(checkout, host, job)
    made = []
    for number in range(count):
        if number % 2:
            hand, ours = world.by_hand(checkout, host, job), world.ours(checkout, host, job)
        else:
            ours, hand = world.ours(checkout, host, job), world.by_hand(checkout, host, job)
        made.append((ours, hand))
    return made


def _rate(seen: Seen, whole: int) -> float:
    return whole / (seen.last - seen.first) / MB


def _seconds(name: str, pairs: list[tuple[Seen, Seen]], goal: float) -> dict[str, Any]:
    return _paired(f"{name}, s", [(ours.first, hand.first) for ours, hand in pairs], goal)


def _paired(name: str, pairs: list[tuple[float, float]], goal: float, at_least: bool = False) -> dict[str, Any]:
    ours, hand = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratios = [ours / hand for ours, hand in pairs]
    ratio = statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratio] * 3
    figure = _figure(name, ours, hand, goal, ratio >= goal if at_least else ratio <= goal)
    return {**figure, "ratio": round(ratio, 3), "spread": round(quarters[2] - quarters[0], 3), "pairs": len(pairs)}


def _figure(name: str, ours: float, hand: float, goal: float, met: bool) -> dict[str, Any]:
    rounded = {"ours": round(ours, 3), "by_hand": round(hand, 3), "ratio": round(ours / hand, 3)}
    return {"figure": name, **rounded, "goal": goal, "met": met}


# -- a checkout, a host that is near or far, and both ways of running a job there --------------------------------------


class FarProxy(proxy.TcpProxy):
    """What is sent arrives `delay` seconds later. TCP's own handshake is a round trip, too."""

    def __init__(self, target: tuple[str, int], delay: float) -> None:
        self.delay = delay
        super().__init__(target)

    def _connect(self, near: socket.socket) -> None:
        time.sleep(2 * self.delay)
        super()._connect(near)

    def _carry(self, source: socket.socket, sink: socket.socket, direction: int) -> None:
        on_its_way = queue.Queue[tuple[float, bytes] | None](64)

        def take() -> None:
            with suppress(OSError):
                while chunk := source.recv(1 << 16):
                    on_its_way.put((time.monotonic() + self.delay, chunk))
            on_its_way.put(None)

        self._start(take)
        with suppress(OSError):
            for due, chunk in iter(on_its_way.get, None):
                time.sleep(max(0.0, due - time.monotonic()))
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)


class World:
    """One host under two names, `near` and `far`, and a person with an edited checkout."""

    def __init__(self, directory: Path, delay: float) -> None:
        self.directory = directory
        # A host's own programs, as a session over SSH finds them, and not what a developer has put before them.
        os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        # Set in many images; every program would compile all that it imports, at each start.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.sshd = Sshd(directory / "ssh")
        self.box = self.sshd.start("near")
        self.proxy = FarProxy((self.box.ip, self.box.port), delay)
        self.sshd.alias("far", self.box, HostName="127.0.0.1", Port=str(self.proxy.port))
        hosts = "".join(f"  {name}: {{kind: ssh, address: {name}, runtime: none}}\n" for name in NAMES)
        (directory / "hosts.yaml").write_text(f"hosts:\n{hosts}")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "GIT_"))}
        self.env = {
            **kept,
            **self.sshd.env,
            "CI_TASKS_HOME": str(directory / "home"),
            "CI_TASKS_HOSTS": str(directory / "hosts.yaml"),
            "XDG_RUNTIME_DIR": str(directory),  # private, so that connections are kept
        }
        self.edits = 0

    def end(self) -> None:
        os.environ["XDG_RUNTIME_DIR"] = str(self.directory)
        mux.end()
        self.proxy.close()
        self.sshd.stop()

    def checkout(self, files: int) -> Path:
        """A repository of so many small files, packed as a clone's is."""
        path = self.directory / f"tree-{files}"
        if path.exists():
            return path
        for number in range(files - 5):
            file = path / f"package_{number % 97}" / f"module_{number}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# module {number}\n" + f"VALUE_{number} = {number * 7919}\n" * 40)
        own = {
            ".github/workflows/pr-test.yml": WORKFLOW,
            "tests/first.sh": f'echo "{TOKEN} 0"\n',
            "tests/log.sh": f'echo "{TOKEN} 0"; cat {self.directory}/big.log\n',
        }
        git.git(git.repository(path, own), "repack", "-adq")
        return path

    def forget(self, name: str) -> None:
        """The host and the person have never heard of each other."""
        for path in (self.directory / "home", self.box.home / ".ci-tasks", self.box.home / name):
            shutil.rmtree(path, ignore_errors=True)

    def ours(self, checkout: Path, host: str, job: Job) -> Seen:
        return self._watch([PROGRAM, "remote", "--host", host, "bench", "--only", job.script], checkout, job)

    def by_hand(self, checkout: Path, host: str, job: Job) -> Seen:
        there = shlex.quote(f"cd {self.box.home}/{checkout.name} && bash tests/{job.script}")
        command = f"{self.rsync(checkout, host)} && exec ssh -F {self.sshd.config_file} {host} {there}"
        return self._watch(["sh", "-c", command], checkout, job)

    def rsync(self, checkout: Path, host: str) -> str:
        ssh = f"ssh -F {self.sshd.config_file}"
        return f"rsync -az --delete --exclude=.git -e '{ssh}' {checkout}/ {host}:{self.box.home}/{checkout.name}/"

    def _watch(self, command: list[str], checkout: Path, job: Job) -> Seen:
        """Edit, run, and read what it says."""
        mark = self._edit(checkout, job.script)
        seen, received, size = Seen(0.0, 0.0, 0), b"", 0
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=checkout, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 1 << 20):
            if not seen.first:
                received += chunk
                if mark not in received:
                    continue
                seen.first = time.perf_counter() - begun
                chunk = received.partition(mark)[2]
            size += len(chunk)
            if not seen.last and size >= job.size:
                seen.last = time.perf_counter() - begun
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode, seen.peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        if not seen.last:
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}, {size} bytes after\n{received!r}")
        return seen

    def _edit(self, checkout: Path, script: str) -> bytes:
        """Change one line of a tracked file; what its job will say first."""
        self.edits += 1
        file = checkout / "tests" / script
        head, rest = file.read_text().split(TOKEN, 1)
        file.write_text(f"{head}{TOKEN} {self.edits}{rest[rest.index(chr(34)) :]}")
        past = time.time() - 10_000 + self.edits  # rsync looks at whole seconds, and would miss a second edit in one
        os.utime(file, (past, past))
        return f"{TOKEN} {self.edits}\n".encode()


if __name__ == "__main__":
    raise SystemExit(main())
