"""Runs as the product starts them: agent.pyz, plan.json and run.sh in a directory; afterwards only files are read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive, run_directory
from ci_tasks.agent import processes as process
from ci_tasks.agent.docker_argv import ENGINES
from ci_tasks.agent.files import content_of
from ci_tasks.agent.records import Event, Status, read_events
from tests.agent.fake_docker import FAKE, Fake
from tests.parts.processes import agent_words

SOON = 20.0  # seconds, for what takes milliseconds on a machine that is not busy


def wait_until(condition: Callable[[], Any], seconds: float = SOON) -> Any:
    """The first true value of `condition`; fails the test where there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


class Run:
    """One run directory and its agent."""

    python = sys.executable

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = run_directory.RunDir(str(path))
        self.plan: dict[str, Any] = {"timeout_minutes": 5, "stall_minutes": 5, "test": None, "grace_seconds": 1}
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "agent.pyz").write_bytes(archive.build())

    def write(self, script: str, **plan: Any) -> None:
        self.plan.update(plan)
        (self.path / "run.sh").write_text(script)
        (self.path / "plan.json").write_text(json.dumps(self.plan))

    def words(self, verb: str) -> list[str]:
        return agent_words(self.python, self.paths.agent, verb, str(self.path))

    def call(self, verb: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
        """With exactly this environment beside PATH and HOME."""
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environ}
        return subprocess.run(self.words(verb), env=env, capture_output=True, timeout=60)

    def start(self, script: str, **environ: str) -> Run:
        self.write(script)
        done = self.call("start", **environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        return self

    def cancel(self) -> None:
        done = self.call("cancel")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def status(self) -> Status:
        return run_directory.read_status(self.paths)

    def ended(self) -> Status:
        """The status at the end."""
        wait_until(lambda: self.status().state == "ended")
        return self.status()

    def log(self) -> bytes:
        return Path(self.paths.log).read_bytes()

    def events(self, name: str | None = None) -> list[Event]:
        events = read_events(content_of(self.paths.events).decode())
        return [event for event in events if name in (None, event.event)]

    def has(self, *names: str) -> bool:
        """Whether the job has made all of these files."""
        return all((self.path / name).exists() for name in names)

    def alive(self) -> list[int]:
        return process.of_run(str(self.path), None)

    def pid(self, name: str) -> int:
        """The process number that the job wrote into the file `name`."""
        wait_until(lambda: self.has(name) and (self.path / name).read_text().endswith("\n"))
        return int((self.path / name).read_text())


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes run directories; whatever a test leaves of its runs is gone after it."""
    runs: list[Run] = []

    def make(name: str = "run") -> Run:
        runs.append(Run(tmp_path / name))
        return runs[-1]

    yield make
    for run in runs:
        status = run.status()
        if process.alive(status):
            with contextlib.suppress(ProcessLookupError):  # it ends by itself just now
                os.kill(status.pid or 0, signal.SIGKILL)
        process.kill_all(str(run.path), process.orphaned_group(status, str(run.path)))


@pytest.fixture
def run(new_run: Callable[..., Run]) -> Run:
    return new_run()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    home = tmp_path / "fake"
    (home / "bin").mkdir(parents=True)
    for name in ENGINES:
        program = home / "bin" / name
        program.write_text(FAKE.format(python=os.path.realpath(sys.executable), home=str(home)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return Fake(home)


_HOLD = """\
import fcntl, os, sys
held = [os.open(path, os.O_RDONLY | os.O_CREAT, 0o666) for path in sys.argv[2:]]
for descriptor in held:
    fcntl.flock(descriptor, fcntl.LOCK_EX if sys.argv[1] == "alone" else fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""
# What the agent asks, and nothing else.
_NVIDIA_SMI = """\
#!/bin/sh
cd "{files}"
echo "$*" >> asked
case "$*" in
"--query-gpu=index,uuid,name,driver_version,memory."*) cat gpus ;;
"--query-gpu=index,uuid,memory."*) cat samples ;;
"--query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv,noheader,nounits") cat apps ;;
*) echo "Invalid option: $*"; exit 2 ;;
esac
"""


class GpuHost:
    """A machine's GPU locks in a directory of their own, with other processes that hold them, and its nvidia-smi."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bin = path / "bin"
        self.bin.mkdir(parents=True)
        self.pattern = str(path / "custom_gpu_lock_{gpu_id}.lock")
        self.processes: list[subprocess.Popen[str]] = []

    def lock(self, gpu: int) -> str:
        return self.pattern.format(gpu_id=gpu)

    def smi(self, *used: int, apps: str = "") -> None:
        """From now on nvidia-smi shows so many MiB used on each GPU, and these processes."""
        (self.path / "nvidia").mkdir(exist_ok=True)
        gpus = [f"{at}, GPU-{at}, NVIDIA H200, 580.1, {mib}, 143771\n" for at, mib in enumerate(used)]
        lines = [
            f"{at}, GPU-{at}, {mib}, 143771, 00000000:{at}B:00.0, 97, 651.20, 61, 1755, 0x4, 0, 0\n"
            for at, mib in enumerate(used)
        ]
        files = {"gpus": "".join(gpus), "apps": apps, "samples": "".join(lines)}
        for name, text in files.items():
            beside = self.path / "nvidia" / "new"
            beside.write_text(text)
            beside.replace(self.path / "nvidia" / name)
        self.smi_says(_NVIDIA_SMI.format(files=self.path / "nvidia"))

    def smi_says(self, script: str) -> None:
        beside = self.path / "new"
        beside.write_text(script)
        beside.chmod(0o755)
        beside.replace(self.bin / "nvidia-smi")

    def hold(self, *paths: str | int, shared: bool = False, **environ: str) -> subprocess.Popen[str]:
        """Another process that holds these locks: GPU numbers, or paths."""
        files = [self.lock(path) if isinstance(path, int) else path for path in paths]
        holder = self.start([sys.executable, "-c", _HOLD, "shared" if shared else "alone", *files], **environ)
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        return holder

    def start(self, command: list[str], **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}
        )
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()
        self.processes.remove(process)

    def free(self, count: int = 8) -> list[int]:
        """The GPUs whose locks a script could take now."""
        free = []
        for gpu in range(count):
            with open(self.lock(gpu), "a+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                free.append(gpu)
        return free


@pytest.fixture
def gpu_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuHost]:
    made = GpuHost(tmp_path / "box")
    monkeypatch.setenv("CI_TASKS_LOCK_DIR", str(made.path))
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    yield made
    for left in list(made.processes):
        made.end(left)


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until
