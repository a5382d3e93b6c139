"""What `bench/remote.py` measures on: a checkout, a host that is near or far, and both ways of running a job there.

The host is OpenSSH's sshd of tests/parts, on this machine; a proxy of the same tests makes it far. By hand means
Debian's rsync and ssh, with the same key and the same settings.
"""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.hosts import mux
from tests.parts import proxy
from tests.parts.sshd import Sshd

TOKEN = "the tree is as of edit"
WORKFLOW = """\
name: PR Test
on: {pull_request: {branches: [main]}}
jobs:
  bench:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        info:
          - {test_file: first.sh, num_gpus: 0}
          - {test_file: log.sh, num_gpus: 0}
          - {test_file: lines.sh, num_gpus: 0}
          - {test_file: alone.sh, num_gpus: 0}
@ROWS@
    steps:
      - uses: actions/checkout@v4
      - {name: Execute, shell: bash, run: "bash tests/${{ matrix.info.test_file }}"}
"""
NAMES = ("near", "far", "narrow")
NARROW_DELAY, NARROW_RATE = 0.005, 12.5e6  # seconds each way, bytes a second: 100 Mbit/s in the same town
ROWS = 10  # that write a log at once
WORKFLOW = WORKFLOW.replace(
    "@ROWS@", "\n".join(f"          - {{test_file: together_{row}.sh, num_gpus: 0}}" for row in range(ROWS))
)
STAMP = "stamp %017.6f of a line as tests print them\n"
LINES = f"""
import sys, time
count, rate, begun = int(sys.argv[1]), float(sys.argv[2]), time.monotonic()
for number in range(count):
    time.sleep(max(0.0, begun + number / rate - time.monotonic()))
    sys.stdout.write({STAMP!r} % time.time())
    sys.stdout.flush()
"""


class CountingProxy(proxy.TcpProxy):
    """Says how long the chain of messages has become, of which each was sent after the one before it had arrived.

    A message is one longer than the longest that its sender had received by then. Half of it is round trips; what
    merely streams in one direction adds none. TCP's own handshake is a round trip too: it is waited for and counted.
    """

    def __init__(self, target: tuple[str, int], delay: float) -> None:
        self.longest = [0, 0]  # that arrived at the host, and at the client
        super().__init__(target, delay)

    @property
    def round_trips(self) -> float:
        return self.longest[1] / 2

    def _connect(self, near: socket.socket) -> None:
        time.sleep(2 * self.delay)
        self.longest = [self.longest[1] + 1, self.longest[1] + 2]
        super()._connect(near)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        for direction, (source, sink) in enumerate(((near, far), (far, near))):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            on_its_way: queue.Queue[tuple[float, bytes]] = queue.Queue(proxy._HELD)
            lengths: queue.Queue[int] = queue.Queue()
            self._start(self._stamped, source, on_its_way, lengths, direction)
            self._start(self._arriving, sink, on_its_way, lengths, direction)

    def _stamped(self, source: Any, on_its_way: Any, lengths: Any, direction: int) -> None:
        self._take(_Noting(source, lambda: lengths.put(self.longest[1 - direction] + 1)), on_its_way)

    def _arriving(self, sink: Any, on_its_way: Any, lengths: Any, direction: int) -> None:
        def arrived() -> None:
            self.longest[direction] = max(self.longest[direction], lengths.get())

        self._give(_Noting(sink, arrived), on_its_way, direction)


class _Noting:
    """A socket that calls `note` for every chunk that went through it, before anybody can answer it."""

    def __init__(self, sock: socket.socket, note: Any) -> None:
        self._sock, self._note = sock, note

    def recv(self, size: int) -> bytes:
        chunk = self._sock.recv(size)
        self._note()
        return chunk

    def sendall(self, chunk: bytes) -> None:
        self._note()
        self._sock.sendall(chunk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@dataclass
class Seen:
    """What came of a command's output, and when."""

    first: float  # seconds from the command's start to the job's first line
    last: float  # seconds to the job's last byte
    peak: int  # bytes of memory
    round_trips: float  # until the first line
    text: bytes = b""
    arrivals: list[tuple[float, int]] = field(
        default_factory=list
    )  # times of day, each with the bytes of `text` by then


@dataclass(frozen=True)
class Job:
    """A script of the checkout, and how many bytes it writes after its first line. `kept`: they are wanted."""

    script: str = "first.sh"
    size: int = 0
    kept: bool = False


class World:
    """One host under three names, `near`, `far` and `narrow`, and a person with an edited checkout."""

    def __init__(self, directory: Path, delay: float) -> None:
        self.directory = directory
        # A host's own programs, as a session over SSH finds them, and not what a developer has put before them.
        os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        # Set in many images; every program would compile all that it imports, at each start.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.sshd = Sshd(directory / "ssh")
        self.box = self.sshd.start("near")
        self.proxy = CountingProxy((self.box.ip, self.box.port), delay)
        self.narrow = proxy.TcpProxy((self.box.ip, self.box.port), NARROW_DELAY, NARROW_RATE)
        for name, link in (("far", self.proxy), ("narrow", self.narrow)):
            self.sshd.alias(name, self.box, HostName="127.0.0.1", Port=str(link.port))
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
        self.narrow.close()
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
        for name, text in {
            ".github/workflows/pr-test.yml": WORKFLOW,
            "tests/first.sh": f'echo "{TOKEN} 0"\n',
            "tests/log.sh": f'echo "{TOKEN} 0"; cat {self.directory}/big.log\n',
            "tests/lines.sh": f'echo "{TOKEN} 0"; python3 tests/lines.py $(cat {self.directory}/lines)\n',
            "tests/lines.py": LINES,
            "tests/alone.sh": f"cat {self.directory}/big.log\n",
            **{f"tests/together_{row}.sh": self._together(row) for row in range(ROWS)},
        }.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
        for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"], ["repack", "-adq"]):
            subprocess.run(["git", *words], cwd=path, check=True, env=self.env)
        return path

    def _together(self, row: int) -> str:
        """Writes its log when all rows have begun."""
        there = self.directory / "begun"
        return (
            f"mkdir -p {there}; touch {there}/{row}\n"
            f"until [ $(ls {there} | wc -l) = {ROWS} ]; do sleep 0.05; done\ncat {self.directory}/big.log\n"
        )

    def forget(self, name: str) -> None:
        """The host and the person have never heard of each other."""
        for path in (self.directory / "home", self.box.home / ".ci-tasks", self.box.home / name):
            shutil.rmtree(path, ignore_errors=True)

    def ours(self, checkout: Path, host: str, job: Job) -> Seen:
        program = str(Path(sys.executable).with_name("ci-tasks"))
        return self._watch([program, "remote", "--host", host, "bench", "--only", job.script], checkout, job)

    def by_hand(self, checkout: Path, host: str, job: Job) -> Seen:
        ssh = f"ssh -F {self.sshd.config_file} {host}"
        there = shlex.quote(f"cd {self.box.home}/{checkout.name} && bash tests/{job.script}")
        return self._watch(["sh", "-c", f"{self.rsync(checkout, host)} && exec {ssh} {there}"], checkout, job)

    def rsync(self, checkout: Path, host: str) -> str:
        ssh = f"ssh -F {self.sshd.config_file}"
        return f"rsync -az --delete --exclude=.git -e '{ssh}' {checkout}/ {host}:{self.box.home}/{checkout.name}/"

    def seconds(self, command: str) -> float:
        begun = time.perf_counter()
        subprocess.run(["sh", "-c", command], check=True, env=self.env, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun

    def logs(self, checkout: Path, host: str, rows: str, size: int) -> float:
        """Run the rows that `rows` names. Returns how many bytes a second their logs grew on this side, from a tenth of
        `size`, which they have in all: before that, some of them may not have begun."""
        shutil.rmtree(self.directory / "begun", ignore_errors=True)
        program = str(Path(sys.executable).with_name("ci-tasks"))
        before = set((self.directory / "home").glob("runs/*/*/log"))
        first, rate = (0.0, 0), 0.0
        with subprocess.Popen(
            [program, "remote", "--host", host, "bench", "--only", rows, "--jobs", str(ROWS)],
            cwd=checkout,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ) as process:
            while process.poll() is None and not rate:
                time.sleep(0.005)
                logs = set((self.directory / "home").glob("runs/*/*/log")) - before
                here, now = sum(log.stat().st_size for log in logs), time.perf_counter()
                if here >= size / 10 and not first[1]:
                    first = now, here
                if here >= size:
                    rate = (here - first[1]) / (now - first[0])
        if not rate:
            raise SystemExit(f"{rows}: exit {process.returncode}, and not all of their logs")
        return rate

    def _watch(self, command: list[str], checkout: Path, job: Job) -> Seen:
        """Edit, run, and read what it says."""
        mark = self._edit(checkout, job.script)
        self.proxy.longest = [0, 0]
        seen, received, size = Seen(0.0, 0.0, 0, 0.0), b"", 0
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
                seen.first, seen.round_trips = time.perf_counter() - begun, self.proxy.round_trips
                chunk = received.partition(mark)[2]
            size += len(chunk)
            if not seen.last and size >= job.size:
                seen.last = time.perf_counter() - begun
            if job.kept:
                seen.text += chunk
                seen.arrivals.append((time.time(), size))
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
