"""All features deleted at once, and nightly each in turn with its tests and the features that need it: the rest starts,
lists and runs. That it type-checks follows from what it imports (test_architecture.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from ci_tasks.registry import features
from tests.parts.imports import ROOT

COPIED = ("ci_tasks", "examples", "hosts.yaml", "pyproject.toml", "tasks.py")
FEATURES = [feature.name for feature in features()]
DELETED = {**{name: [name] for name in FEATURES}, "all": FEATURES}
CASES = ["all", *(pytest.param(name, marks=pytest.mark.nightly) for name in FEATURES)]
LABEL = "precision"  # one row, no install steps
PROGRAM = """
import os, ci_tasks
assert ci_tasks.__file__.startswith(os.environ["PYTHONPATH"]), "the copy has to be tested"
from ci_tasks.cli.program import main
main()
"""


def with_dependents(names: Collection[str]) -> set[str]:
    """The features, and all that need one of them."""
    deleted = set(names)
    while more := {feature.name for feature in features() if deleted & set(feature.needs)} - deleted:
        deleted |= more
    return deleted


@pytest.fixture(scope="module", params=CASES)
def copy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project without the features. Times are kept: compiled modules stay valid."""
    copy = tmp_path_factory.mktemp(f"without-{request.param}")
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name) if (ROOT / name).is_dir() else shutil.copy2(ROOT / name, copy)
    for name in with_dependents(DELETED[request.param]):
        shutil.rmtree(copy / "ci_tasks/features" / name)
    return copy


def run(copy: Path, home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CI_TASKS_")}
    environ = {**inherited, "PYTHONPATH": str(copy), "CI_TASKS_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    command = [sys.executable, "-c", PROGRAM, *argv]
    return subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)


def test_the_rest_starts_lists_and_runs(copy: Path, tmp_path: Path) -> None:
    listed = run(copy, tmp_path, "--list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "remote" in listed.stdout
    jobs = run(copy, tmp_path, "jobs")
    assert jobs.returncode == 0, jobs.stderr
    assert LABEL in jobs.stdout
    ran = run(copy, tmp_path, "remote", "--host", "sim", LABEL)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
