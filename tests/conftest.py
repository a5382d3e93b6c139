"""What holds for all tests: a signal that whoever started pytest ignores (`nohup`, a job in the background) is not
ignored by what the tests start, nor by pytest, which gets some of them itself. What a person's shells read at login is
not read, and byte code is kept."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from ci_tasks import safe_output
from tests.parts.nightly import SEED, mark_nightly

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("nightly", hypothesis.settings.get_profile("any machine"), max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("CI_TASKS_TEST_PROFILE", "any machine"))

pytest_plugins = ["tests.fixtures"]

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # pip's wheels
os.environ["HOME"] = tempfile.mkdtemp(prefix="ci-tasks-test-home-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)
# Nobody's alone, so that no connection is kept beyond a command, unless a test says so.
os.environ["XDG_RUNTIME_DIR"] = os.path.join(os.environ["HOME"], "shared")
os.mkdir(os.environ["XDG_RUNTIME_DIR"], 0o755)
# What a person's shell has set for ci-tasks, git, nox or the terminal is for their own commands.
_OWN = ("CI_TASKS_TEST_", "CI_TASKS_WRITE_")  # read by the tests
for _name in list(os.environ):
    if _name.startswith(("CI_TASKS_", "GIT_", "NOX", "BRIDGE_", "VERL_")) and not _name.startswith(_OWN):
        del os.environ[_name]
for _name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)
# Set in many images; each program that a test starts would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The Python that PATH finds, itself: a shim of pyenv is a shell script that takes longer than what it starts.
_python3 = subprocess.check_output(["python3", "-c", "import sys; print(sys.executable)"], text=True).strip()
os.environ["PATH"] = os.pathsep.join([os.path.dirname(_python3), os.environ["PATH"]])


def pytest_report_header() -> str:
    return f"tests of long journeys are drawn with CI_TASKS_TEST_SEED={SEED}"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist gives its workers the paths as if they had been named
        os.environ["CI_TASKS_TEST_NAMED"] = "1" if config.args_source is pytest.Config.ArgsSource.ARGS else ""


@pytest.hookimpl(tryfirst=True)  # before the marks select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ["CI_TASKS_TEST_NAMED"]:  # a file that is named is meant whole
        mark_nightly(config.rootpath, items)
        items.sort(key=lambda item: not _is_long(item))  # else a worker begins the longest when the others are done


def pytest_collection_finish() -> None:
    """Garbage is looked for between tests, and not in what was collected: a finalizer in the middle of a test may fail
    where that has used up the stack, and what it says is another test's."""
    gc.freeze()
    gc.disable()


def pytest_runtest_teardown() -> None:
    gc.collect(1)


def _is_long(item: pytest.Item) -> bool:
    """Whether the test runs the program as a person does, or a real server."""
    fixtures = getattr(item, "fixturenames", ())
    return not {"person", "engine", "docker_daemon", "podman", "slurm", "sshd"}.isdisjoint(fixtures)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto`: one more than there are cores, since a test that waits for a daemon or a job leaves its core idle."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_output, "_added_secrets", set())


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    """One that nobody closes starts agents again and again, as long as the tests run."""
    before = _connections()
    yield
    until = time.monotonic() + 5
    while (left := _connections() - before) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left


def _connections() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "ci-tasks connection"}
