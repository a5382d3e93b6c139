"""A home of the test's own, played hosts, and a checkout with one workflow."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.results import store
from tests.run.simulated import World


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """played({host: GPUs}, {row: GPUs}), in a home of its own."""
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "home"))
    return lambda hosts, rows: World(tmp_path, hosts, rows)


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """commit(workflow) → a checkout with it, in a home of its own."""
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "home"))

    def checkout(workflow: str) -> Path:
        path = tmp_path / "checkout"
        (path / ".github/workflows").mkdir(parents=True)
        (path / ".github/workflows/ci.yml").write_text(workflow)
        person = ("-c", "user.name=p", "-c", "user.email=p@example.com")
        for command in (("init", "--quiet"), ("add", "--all"), (*person, "commit", "--quiet", "--message=m")):
            subprocess.run(["git", "-C", str(path), *command], check=True)
        return path

    return checkout
