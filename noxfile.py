"""The checkout's CI jobs as sessions (tag `ci`), and our own development sessions (tag `dev`)."""

import gc
import glob
import os
import sys

import nox

from ci_tasks.cli import sessions

gc.freeze()  # what is loaded stays: neither a search for garbage nor the end of nox has to look through it
nox.options.default_venv_backend = "venv"
sessions.register()


@nox.session(tags=["dev"])
def tests(session: nox.Session) -> None:
    """our own tests, with coverage"""
    session.install("-e", ".[dev]")
    coverage = ["--cov", "--cov-report=term:skip-covered"]
    session.run("pytest", "-n", "auto", "--dist", "worksteal", *coverage, *session.posargs)


@nox.session(tags=["dev"], default=False)
def nightly(session: nox.Session) -> None:
    """our own tests, all of them: every case of the long lists, and more random ones"""
    session.install("-e", ".[dev]")
    how = ["-n", "auto", "--dist", "worksteal", "--timeout", "1800"]
    environ = {"CI_TASKS_TEST_PROFILE": "nightly", "CI_TASKS_TEST_EXAMPLES": "1000"}
    session.run("pytest", *how, "-m", "nightly or not nightly", *session.posargs, env=environ)


@nox.session(tags=["dev"], default=False)
def mutations(session: nox.Session) -> None:
    """200 random faults, one at a time: the tests of the folder must notice 90 % of them"""
    session.install("-e", ".[dev]")
    session.run("python", "bench/mutations.py", "--count", "200", "--least", "90", *session.posargs)


# The tests that depend most on Python's version and on our dependencies. `.ci/run` runs only these on other versions.
FAST = ["tests/report", "tests/workflow", "tests/hosts/test_ssh.py", "tests/cli", "tests/test_debug_log.py"]
FAST += ["tests/logs", "tests/features/prefetch/test_hub.py"]
FAST += ["tests/hosts/test_ssh_config.py"]


def _pythons() -> dict[str, str]:
    """Every CPython from 3.10 up on PATH or of pyenv: version → program."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    directories = glob.glob(f"{pyenv}/versions/*/bin") + os.environ.get("PATH", "").split(os.pathsep)
    programs = {}
    for minor in range(10, 30):
        paths = (f"{directory}/python3.{minor}" for directory in directories)
        if program := next((path for path in paths if os.access(path, os.X_OK)), None):
            programs[f"3.{minor}"] = program
    return programs or {f"3.{sys.version_info.minor}": sys.executable}


PYTHONS = _pythons()


def _run_tests(session: nox.Session, python: str, constraints: str = "") -> None:
    """Our tests on another Python: all of them, those named after `--`, or the fast part."""
    venv = os.path.join(session.create_tmp(), "venv")
    session.run(python, "-m", "venv", "--clear", venv, external=True)
    limits = ["-c", constraints] if constraints else []
    session.run(f"{venv}/bin/python", "-m", "pip", "install", "-q", *limits, "-e", ".[dev]", external=True)
    selected = [path for argument in session.posargs for path in (FAST if argument == "fast" else [argument])]
    workers = ["-n", "auto", "--dist", "worksteal"]
    session.run(f"{venv}/bin/python", "-m", "pytest", "-q", *workers, *selected, external=True)


@nox.session(tags=["dev"], default=False, venv_backend="none")
@nox.parametrize("program", list(PYTHONS.values()), ids=list(PYTHONS))
def versions(session: nox.Session, program: str) -> None:
    """our tests on each CPython of this machine; `-- fast` for the part that CI runs"""
    _run_tests(session, program)


@nox.session(tags=["dev"], default=False, venv_backend="none")
def lowest(session: nox.Session) -> None:
    """our tests with the lowest versions that pyproject.toml allows; `-- fast` for the part that CI runs"""
    constraints = os.path.join(session.create_tmp(), "constraints.txt")
    with open(constraints, "w", encoding="utf-8") as out:
        session.run(sys.executable, "bench/lowest.py", stdout=out, external=True)
    _run_tests(session, next(iter(PYTHONS.values())), constraints)


@nox.session(tags=["dev"])
def lint(session: nox.Session) -> None:
    """ruff: rules and format"""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(tags=["dev"])
def typecheck(session: nox.Session) -> None:
    """mypy, strict"""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session(tags=["dev"])
def docs(session: nox.Session) -> None:
    """build docs/ as a site in site/; a broken link or anchor fails"""
    session.install("-e", ".[docs]")
    session.run("sphinx-build", "-nW", "--keep-going", "-q", "docs", "site", *session.posargs)


@nox.session(tags=["dev"], default=False)
def record(session: nox.Session) -> None:
    """what is planned for real workflows, in clones that you name, against tests/record; `-- --write` records it"""
    session.install("-e", ".")
    session.run("python", "-m", "tests.record.record", *session.posargs)


@nox.session(tags=["dev"], default=False)
def bench(session: nox.Session) -> None:
    """side-by-side measurements, one JSON line for each figure"""
    session.install("-e", ".")
    session.run("python", "bench/startup.py", *session.posargs)
