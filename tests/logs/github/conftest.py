"""A GitHub to ask, in a world where nothing else says who we are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks.logs import github
from tests.logs.github.github_server import REPO, Server, Serving, Storage, job, leads_to, run, serving

LOG = b"".join(b"2025-11-02T10:00:00.0000000Z line %d of the log\n" % number for number in range(20_000))
_VARIABLES = ("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GITHUB_API_URL")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token, no proxy, no gh, no netrc of whoever runs this."""
    (tmp_path / "bin").mkdir()
    for name in (*_VARIABLES, *_PROXIES, *(name.upper() for name in _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setattr(github, "_RETRIES", github._RETRIES.new(backoff_factor=0))


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[Server, Server]]:
    with serving() as first, serving() as second:
        yield first, second


@pytest.fixture
def storage(servers: tuple[Server, Server]) -> Storage:
    return servers[1].now_for(Storage(LOG))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, servers: tuple[Server, Server], storage: Storage) -> Serving:
    """The API, where job 9 of run 7 has failed."""
    state = servers[0].now_for(Serving())
    monkeypatch.setenv("GITHUB_API_URL", state.url)
    monkeypatch.setenv("GH_TOKEN", "ghp_verysecret")
    state.on(f"{REPO}/actions/jobs/9", job(9))
    state.on(f"{REPO}/actions/runs/7", run())
    state.on(f"{REPO}/pulls", [])
    state.on(f"{REPO}/actions/jobs/9/logs", leads_to(storage))
    return state
