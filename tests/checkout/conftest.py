"""Repositories, and a home of the test's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


def _neighbour(name: str) -> Any:
    """Test files are imported by path (importmode=importlib), so a neighbour has to be as well."""
    spec = importlib.util.spec_from_file_location(f"ci_tasks_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[f"ci_tasks_tests_{name}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


repositories = _neighbour("repositories")
git, make_repo, commit = repositories.git, repositories.make_repo, repositories.commit


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, so that the configuration of who runs it cannot matter."""
    config = tmp_path / ".gitconfig"
    config.write_text(
        '[user]\n\tname = T\n\temail = t@example.com\n[protocol "file"]\n\tallow = always\n[gc]\n\tauto = 0\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return config


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    made: Path = make_repo(tmp_path / "repo")
    return made


@pytest.fixture
def part(repo: Path) -> Path:
    (repo / "examples/s ample").mkdir(parents=True)
    (repo / "examples/s ample/a.txt").write_text("a\n")
    (repo / "examples/s ample/b.txt").write_text("b\n")
    commit(repo)
    return repo / "examples/s ample"


@pytest.fixture
def with_submodule(repo: Path, tmp_path: Path) -> Path:
    make_repo(tmp_path / "library")
    git(repo, "submodule", "--quiet", "add", str(tmp_path / "library"), "third party")
    commit(repo)
    return repo
