"""All features deleted at once, and nightly each in turn with its tests and the features that need it: the rest starts,
lists, runs and type-checks, its tests included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from ci_tasks.registry import features
from tests.parts.imports import ROOT, imported_names, module_name

CHECKED = [ROOT / "tasks.py", *(path for name in ("ci_tasks", "tests") for path in (ROOT / name).rglob("*.py"))]
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


def test_the_rest_type_checks() -> None:
    """As the whole does: what a module's types depend on is what it imports, and nothing that is deleted is."""
    uses = {path: (feature_in(module_name(path)), {*map(feature_in, imported_names(path))} - {""}) for path in CHECKED}
    wrong = set()
    for names in DELETED.values():
        deleted = with_dependents(names)
        wrong |= {path for path, (own, others) in uses.items() if own not in deleted and others & deleted}
    assert wrong == set()


def feature_in(module: str) -> str:
    """The feature whose folder, or whose tests' folder, the dotted name is in; "" for the core."""
    package, features_, *rest = [*module.split("."), "", ""][:3]
    return rest[0] if package in ("ci_tasks", "tests") and features_ == "features" else ""
