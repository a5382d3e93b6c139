"""A model hub to ask, in a world that knows no token, no proxy and no cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.features.suites.slime_helpers import HELPERS
from tests.features.prefetch.hub_server import Hub, serving
from tests.features.recorder.recording import record as record

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
    with serving() as hub:
        yield hub
