"""Repositories, and a home of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkout.repositories import commit, git, make_repo


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
    return make_repo(tmp_path / "repo")


@pytest.fixture
def with_submodule(repo: Path, tmp_path: Path) -> Path:
    make_repo(tmp_path / "library")
    git(repo, "submodule", "--quiet", "add", str(tmp_path / "library"), "third party")
    commit(repo)
    return repo
