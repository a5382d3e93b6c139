"""A home of the test's own, played hosts, and a checkout with one workflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.results import store
from tests.parts.git import repository
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

    return lambda workflow: repository(tmp_path / "checkout", {".github/workflows/ci.yml": workflow})
