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
from collections.abc import Callable, Generator, Iterator
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
warm = _neighbour("warm").Warm()

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
    first: str = ""  # Python that runs before each command, as to give it less patience
    said: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        _PERSONS.append(self)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "GIT_", "NOX"))}
        return {**kept, "CI_TASKS_HOME": str(self.home), "TINY_STEP_SECONDS": "0.05", **self.env}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", f"{self.first}\nfrom ci_tasks.cli import main; main()", *words]

    def start(self, *words: str, stdin: str = "") -> Any:
        """What subprocess.Popen gives for it, or what behaves like that."""
        environ = self.environment()
        with tempfile.TemporaryFile("w+") as typed:
            typed.write(stdin)
            typed.seek(0)
            if warm.can(environ):
                handle = typed.fileno()
                return warm.start(words, first=self.first, cwd=self.checkout, env=environ, stdin=handle)
            return subprocess.Popen(
                self.command(*words),
                cwd=self.checkout,
                env=environ,
                stdin=typed,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )

    def ci_tasks(self, *words: str) -> Said:
        started = self.start(*words)
        out, err = started.communicate(timeout=180)
        self.said.append(Said(started.returncode, out, err))
        return self.said[-1]

    def nox(self, *words: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), *words],
            cwd=self.checkout,
            env={**self.environment(), "CI_TASKS_REPO": str(self.checkout)},
            capture_output=True,
            text=True,
            timeout=180,
        )
        self.said.append(Said(done.returncode, done.stdout, done.stderr))
        return self.said[-1]

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

    def told(self) -> str:
        """How every run stands, with the end of its log, and what the last command said: for a test that fails."""
        lines = []
        for record in sorted(self.home.glob("runs/**/record.json")):
            found = json.loads(record.read_text())
            lines.append(f"{found.get('id')} {found.get('row')}: {found.get('status')}, {found.get('reason')}")
        for log in sorted(self.home.glob("**/log")):
            if log.is_file():
                lines += [f"{log}:", *(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-8:])]
        for said in self.said[-1:]:
            lines.append(f"the last command, exit code {said.code}:\n{said.out[-4000:]}{said.err[-4000:]}")
        return "\n".join(lines)

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


_PERSONS: list[Person] = []  # those of the test at hand


def pytest_runtest_setup() -> None:
    _PERSONS.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"runs below {person.home}", person.told()) for person in _PERSONS]
    return report


@pytest.fixture(scope="session", autouse=True)
def _cooled() -> Iterator[None]:
    yield
    warm.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def person(tmp_path: Path, home: Path, sample_repository: Path) -> Iterator[Person]:
    """In a checkout of their own: the sample, committed, with `origin/main` at that commit. Its path has a space and a
    quote, as a person's may."""
    someone = Person(home, shutil.copytree(sample_repository, tmp_path / "tiny slime's checkout"))
    # Copied files have times of their own, which git would take for edits until it has looked.
    someone.git("update-index", "-q", "--refresh")
    yield someone
    for pid in someone.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def sample_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as a git repository, to be copied."""
    path = tmp_path_factory.mktemp("sample") / "checkout"
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
