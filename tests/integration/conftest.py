"""A person at a terminal: a home of their own, a copy of the sample as a git checkout, and the commands."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples/tiny-slime"

# Test files are imported by path (importmode=importlib), so a neighbour has to be as well.
sys.modules["ci_tasks_tests_conftest"] = sys.modules[__name__]


def _neighbour(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"ci_tasks_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[f"ci_tasks_tests_{name}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docker_host = _neighbour("dockerd").docker_host
sshd = _neighbour("sshd").sshd
_neighbour("tcp_proxy")

PATIENCE = 60.0


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true value of `condition`; fails the test when none came in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {seconds:g} s: {what}")


@dataclass
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@dataclass
class Person:
    """Runs commands in `checkout` with a clean environment; `home` keeps their runs."""

    home: Path
    checkout: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "GIT_", "NOX"))}
        return {**kept, "CI_TASKS_HOME": str(self.home), "TINY_STEP_SECONDS": "0.05", **self.env}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", "from ci_tasks.cli import main; main()", *words]

    def start(self, *words: str, stdin: str = "") -> subprocess.Popen[str]:
        with tempfile.TemporaryFile("w+") as typed:
            typed.write(stdin)
            typed.seek(0)
            return subprocess.Popen(
                self.command(*words),
                cwd=self.checkout,
                env=self.environment(),
                stdin=typed,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )

    def ci_tasks(self, *words: str) -> Said:
        started = self.start(*words)
        out, err = started.communicate(timeout=180)
        return Said(started.returncode, out, err)

    def nox(self, *words: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), *words],
            cwd=self.checkout,
            env={**self.environment(), "CI_TASKS_REPO": str(self.checkout)},
            capture_output=True,
            text=True,
            timeout=180,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.checkout, check=True, capture_output=True, text=True)
        return done.stdout

    def write(self, name: str, text: str) -> Path:
        path = self.checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def edit(self, name: str, before: str, after: str) -> None:
        path = self.checkout / name
        text = path.read_text()
        assert before in text, f"{name} has no {before!r}"
        path.write_text(text.replace(before, after))

    def records(self) -> list[dict[str, Any]]:
        """The records of the newest batch, in the rows' order."""
        batches = sorted((self.home / "runs").iterdir())
        return [json.loads(path.read_text()) for path in sorted(batches[-1].glob("*/record.json"))]

    def logs(self) -> dict[str, str]:
        """Row → log of the newest batch."""
        batches = sorted((self.home / "runs").iterdir())
        runs = sorted(path for path in batches[-1].iterdir() if (path / "log").exists())
        return {json.loads((run / "plan.json").read_text())["row"]: (run / "log").read_text() for run in runs}

    def processes(self) -> list[int]:
        """Every process that belongs to a run of this home."""
        mark = f"CI_TASKS_RUN_DIR={self.home}/".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def person(tmp_path: Path, home: Path) -> Iterator[Person]:
    """In a checkout of their own: the sample, committed, with `origin/main` at that commit."""
    someone = Person(home, new_checkout(tmp_path / "tiny slime's checkout"))
    yield someone
    for pid in someone.processes():
        os.kill(pid, signal.SIGKILL)


def new_checkout(path: Path) -> Path:
    """The sample as a git repository. Its path has a space and a quote, as a person's may."""
    shutil.copytree(SAMPLE, path, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        [*identity, "commit", "--quiet", "--message=the sample"],
        ["update-ref", "refs/remotes/origin/main", "HEAD"],
    ):
        subprocess.run(["git", *words], cwd=path, check=True, capture_output=True)
    return path
