"""A model hub to ask, in a world that knows no token, no proxy and no cache. A neighbour is imported by path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.features.suites.slime_helpers import HELPERS
from tests.features.recorder.recording import record as record

if TYPE_CHECKING:
    from tests.features.prefetch.hub_server import Hub, serving
else:
    _name = "ci_tasks_tests_hub_server"
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name("hub_server.py"))
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])
    from ci_tasks_tests_hub_server import Hub, serving

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of whoever runs this."""
    hubs = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_CACHE")
    for name in (*hubs, *_PROXIES, *(name.upper() for name in _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def launch_helpers() -> Mapping[str, Sequence[str]]:
    return HELPERS


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Large files are elsewhere, as on the real hub."""
    with serving() as storage, serving(storage) as hub:
        storage.repos, storage.open = hub.repos, True
        yield hub
