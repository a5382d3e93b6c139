"""A home of its own for each test: a journal is found again by what was asked. ^C is as a person's shell leaves it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks.results import store


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def the_usual_interrupt() -> Iterator[None]:
    """^C ends what runs, before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
