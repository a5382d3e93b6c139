"""Runs as the product starts them: runner.pyz, plan.json and run.sh in a directory; afterwards only files are read."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.runner import archive, layout, process

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
    """One run directory and its runner."""

    python = sys.executable

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = layout.RunDir(str(path))
        self.plan: dict[str, Any] = {"timeout_minutes": 5, "stall_minutes": 5, "test": None, "patience_seconds": 1}
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "runner.pyz").write_bytes(archive.build())

    def write(self, script: str, **plan: Any) -> None:
        self.plan.update(plan)
        (self.path / "run.sh").write_text(script)
        (self.path / "plan.json").write_text(json.dumps(self.plan))

    def call(self, *words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
        """`runner.pyz WORDS`, with exactly this environment beside PATH and HOME."""
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environ}
        return subprocess.run([self.python, self.paths.runner, *words], env=env, capture_output=True, timeout=60)

    def start(self, script: str, **environ: str) -> Run:
        self.write(script)
        done = self.call("start", str(self.path), **environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        return self

    def cancel(self) -> None:
        done = self.call("cancel", str(self.path))
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def status(self) -> dict[str, Any]:
        return layout.read_json(self.paths.status)

    def ended(self) -> dict[str, Any]:
        """The status at the end."""
        wait_until(lambda: self.status()["state"] == layout.STATE_ENDED)
        return self.status()

    def log(self) -> bytes:
        return Path(self.paths.log).read_bytes()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        lines = Path(self.paths.events).read_text().splitlines()
        return [event for event in map(json.loads, lines) if name in (None, event["event"])]

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
            os.kill(status["pid"], signal.SIGKILL)
        process.kill_all(str(run.path), process.orphaned_group(status, str(run.path)))


@pytest.fixture
def run(new_run: Callable[..., Run]) -> Run:
    return new_run()


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until


@pytest.fixture
def python_script(tmp_path: Path) -> Callable[[str], str]:
    """A shell command that runs a Python text."""

    def script(text: str) -> str:
        path = tmp_path / f"script-{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))}"

    return script
