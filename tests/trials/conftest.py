"""A home of its own for each test: a journal is found again by what was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.results import store


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "state"))
    return tmp_path / "state"
