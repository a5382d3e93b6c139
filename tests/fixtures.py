"""A person at a terminal: a home of their own, a copy of the sample as a git checkout, and the commands."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.parts import Missing
from tests.parts.dockerd import IMAGE, Daemon, docker, image_tar
from tests.parts.engine import Engine
from tests.parts.git import git, repository
from tests.parts.podman import Podman
from tests.parts.processes import files_named, kill, with_variable
from tests.parts.slurm import Cluster, Slurm, login_node
from tests.parts.sshd import Sshd
from tests.parts.warm import Warm, end_session
from tests.parts.wheels import write_index
from tests.published import check_command

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "examples/tiny-slime"

warm = Warm()

TIMEOUT_SECONDS = 60.0
# What the sample's GPU rows install with, and what has the same effect in a tenth of the time.
PIP = "pip install -e . --no-deps --break-system-packages"
LINKS = 'echo "$PWD" > "$(python -c "import sysconfig; print(sysconfig.get_path(\\"purelib\\"))")/checkout.pth"'


def cannot(reason: str) -> NoReturn:
    """Skip the test, which lacks something here; where CI=true it fails instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def on_a_new_tmpfs(
    directory: Path, options: str, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `words` where `directory` is a tmpfs mounted with `options`, which nothing else sees."""
    mount = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", options, str(directory), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.stderr.startswith(("unshare: ", "mount: ")):
        cannot(f"nothing can be mounted: {done.stderr.strip()}")
    return done


@contextlib.contextmanager
def _or_skip() -> Iterator[contextlib.ExitStack]:
    """For servers: what is missing skips the test."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack
        except Missing as missing:
            cannot(str(missing))


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[Daemon]:
    """A running daemon that has IMAGE."""
    with _or_skip() as stack:
        daemon = stack.enter_context(Daemon())
        docker(daemon.host, "import", "-", IMAGE, stdin=image_tar())
        yield daemon


@pytest.fixture(scope="session")
def docker_host(docker_daemon: Daemon) -> str:
    """The value of DOCKER_HOST for it."""
    return docker_daemon.host


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """A podman that has IMAGE."""
    with _or_skip() as stack:
        podman = stack.enter_context(Podman())
        podman.call("import", "-", IMAGE, stdin=image_tar())
        yield podman


@pytest.fixture(params=["docker_daemon", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The test runs with each of them."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with _or_skip() as stack:
        yield stack.enter_context(Sshd(tmp_path / "ssh"))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """One Slurm for each worker. Its configuration takes no path with a space."""
    with _or_skip() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ci-tasks-slurm-", dir="/tmp"))
        yield stack.enter_context(Slurm(Path(directory)))


@pytest.fixture
def cluster(slurm: Slurm, sshd: Sshd, tmp_path: Path) -> Iterator[Cluster]:
    with _or_skip() as stack:
        yield stack.enter_context(login_node(slurm, sshd, tmp_path))


def until(condition: Callable[[], Any], what: str, seconds: float = TIMEOUT_SECONDS) -> Any:
    """The first true value of `condition`; fails the test when none came in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {seconds:g} s: {what}")


def ends(client: Any, code: int) -> str:
    """What a started command says from here to its end, which has this exit code."""
    out, err = client.communicate(timeout=120)
    assert client.returncode == code, out + err
    return str(out + err)


@dataclass
class CommandResult:
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
    results: list[CommandResult] = field(default_factory=list)
    started: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        _PERSONS.append(self)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "GIT_", "NOX"))}
        own = {"CI_TASKS_HOME": str(self.home), "CI_TASKS_LOCK_DIR": str(self.home.parent), "TINY_STEP_SECONDS": "0.05"}
        return {**kept, **own, **self.env}

    def command(self, *argv: str) -> list[str]:
        return [sys.executable, "-c", f"{self.first}\nfrom ci_tasks.cli.program import main; main()", *argv]

    def start(self, *argv: str, stdin: str = "") -> Any:
        """What subprocess.Popen gives for it, or what behaves like that."""
        with tempfile.TemporaryFile("w+") as typed:
            typed.write(stdin)
            typed.seek(0)
            self.started.append(self._start(argv, typed.fileno()))
        return self.started[-1]

    def _start(self, argv: Sequence[str], stdin: int) -> Any:
        environ = self.environment()
        if warm.can(environ):
            return warm.start(argv, first=self.first, cwd=self.checkout, env=environ, stdin=stdin)
        return subprocess.Popen(
            self.command(*argv),
            cwd=self.checkout,
            env=environ,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def end_commands(self) -> None:
        """Those that still run: of a test that failed, or gave up waiting."""
        for command in self.started:
            if command.poll() is None:
                end_session(command.pid)
                command.wait()

    def ci_tasks(self, *argv: str) -> CommandResult:
        started = self.start(*argv)
        out, err = started.communicate(timeout=180)
        self.results.append(CommandResult(started.returncode, out, err))
        check_command(argv, self.checkout, out)
        return self.results[-1]

    def git(self, *argv: str) -> str:
        done = subprocess.run(["git", *argv], cwd=self.checkout, check=True, capture_output=True, text=True)
        return done.stdout

    def write(self, name: str, text: str) -> Path:
        path = self.checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_hosts(self, text: str) -> Path:
        """A hosts.yaml of the person's own, which is no part of the checkout."""
        path = self.home.with_name("hosts.yaml")
        path.write_text(text)
        self.env["CI_TASKS_HOSTS"] = str(path)
        return path

    def edit(self, name: str, before: str, after: str) -> None:
        path = self.checkout / name
        text = path.read_text()
        assert before in text, f"{name} has no {before!r}"
        path.write_text(text.replace(before, after))

    def use_index(self, index: Mapping[str, str]) -> None:
        """The sample's CPU rows are those of the tests' own Python, and install from the index."""
        self.env.update(index)
        version = f"python-version: '3.{sys.version_info.minor}'"
        self.edit(".github/workflows/pr-test.yml", "python-version: '3.10'", version)

    def records(self) -> list[dict[str, Any]]:
        """The records of the newest batch, in the rows' order."""
        batches = sorted((self.home / "runs").iterdir())
        return [json.loads(path.read_text()) for path in sorted(batches[-1].glob("*/record.json"))]

    def logs(self) -> dict[str, str]:
        """Row → log of the newest batch."""
        batches = sorted((self.home / "runs").iterdir())
        runs = sorted(path for path in batches[-1].iterdir() if (path / "log").exists())
        return {json.loads((run / "plan.json").read_text())["row"]: (run / "log").read_text() for run in runs}

    def describe_runs(self) -> str:
        """How every run stands, with the end of its log, and what the last command said: for a test that fails."""
        lines = []
        for record in sorted(self.home.glob("runs/**/record.json")):
            found = json.loads(record.read_text())
            lines.append(f"{found.get('id')} {found.get('row')}: {found.get('status')}, {found.get('reason')}")
        for log in sorted(files_named("log", self.home)):
            if log.is_file():
                lines += [f"{log}:", *(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-8:])]
        for result in self.results[-1:]:
            lines.append(f"the last command, exit code {result.code}:\n{result.out[-4000:]}{result.err[-4000:]}")
        return "\n".join(lines)

    def processes(self) -> list[int]:
        """Every process that belongs to a run of this home."""
        return with_variable(f"CI_TASKS_RUN_DIR={self.home}/")


_PERSONS: list[Person] = []  # those of the test at hand


def pytest_runtest_setup() -> None:
    _PERSONS.clear()
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its workers; a command here has no terminal


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Before the hosts of the test go, at which its commands would wait for them to come back."""
    for person in _PERSONS:
        person.end_commands()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"runs below {person.home}", person.describe_runs()) for person in _PERSONS]
    return report


@pytest.fixture(scope="session", autouse=True)
def _cooled() -> Iterator[None]:
    yield
    warm.close()


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which pip has pytest for the Python of these tests, and needs no network."""
    directory = tmp_path_factory.mktemp("index")
    write_index(directory, "pytest")
    path = f"{sys.base_prefix}/bin:{os.environ['PATH']}"
    return {"PATH": path, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": directory.as_uri()}


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
    kill(someone.processes())


@pytest.fixture(scope="session")
def sample_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as a git repository, to be copied. Its GPU rows are installed without pip, and its steps take a
    workspace whose path has a space."""
    path = tmp_path_factory.mktemp("sample") / "checkout"
    shutil.copytree(SAMPLE, path, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pr-test.yml", "pr-test.yml.j2"):
        workflow = path / ".github/workflows" / name
        text = workflow.read_text().replace(PIP, LINKS)
        workflow.write_text(text.replace("cd $GITHUB_WORKSPACE ", 'cd "$GITHUB_WORKSPACE" '))
    git(repository(path), "update-ref", "refs/remotes/origin/main", "HEAD")
    return path
