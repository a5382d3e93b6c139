"""A home of the test's own, and played hosts. Test files are imported by path, so a neighbour has to be as well."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.results import store

if TYPE_CHECKING:
    from tests.run.simulated import World
else:
    _name = "ci_tasks_tests_simulated"
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name("simulated.py"))
    _simulated = sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_simulated)
    from ci_tasks_tests_simulated import World


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """played({host: GPUs}, {row: GPUs}), in a home of its own."""
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "home"))
    return lambda hosts, rows: World(tmp_path, hosts, rows)
