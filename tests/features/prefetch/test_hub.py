"""What a hub of the test's own says of a repository, asked through the real huggingface_hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.features.prefetch import hub as asking
from ci_tasks.features.prefetch.hub_errors import HubRefusal, RepoSnapshot
from ci_tasks.features.prefetch.repositories import HubRepository
from tests.features.prefetch.hub_server import Fault, Hub

LARGE = b"w" * 5000
FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": LARGE}


def repository(id: str = "org/m", **more: Any) -> HubRepository:
    return HubRepository(**{"kind": "model", "id": id, "directory": "/root/models/m", **more})


class HubClient:
    """A hub that is asked with one token; how long it was waited for is kept."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.messages: list[str] = []
        self.waited: list[float] = []
        self._hub = asking.Hub(url, token, self.messages.append, Path("~/answers").expanduser(), self.waited.append)

    def snapshot(self, repository: HubRepository) -> RepoSnapshot:
        response = self._hub.find(repository)
        assert isinstance(response, RepoSnapshot), response
        return response

    def refused(self, repository: HubRepository) -> HubRefusal:
        response = self._hub.find(repository)
        assert isinstance(response, HubRefusal), response
        return response


def test_commit_size_and_checksums_of_the_required_files(hub: Hub) -> None:
    repo = hub.add("org/m", FILES)
    snapshot = HubClient(hub.url).snapshot(repository())
    assert (snapshot.commit, snapshot.size, snapshot.gated, snapshot.private) == (repo.sha, 5007, "", False)
    assert {file.path: len(file.etag) for file in snapshot.files} == {
        "config.json": 40,
        "sub/notes.txt": 40,
        "model.safetensors": 64,
    }


@pytest.mark.parametrize(
    ("more", "token", "code", "hint"),
    [
        ({}, None, None, ""),
        ({"gated": "manual"}, None, "gated", "accept its terms"),
        ({"gated": "auto"}, "hf_other", "gated", "accept its terms"),
        ({"private": True}, None, "unauthorised", "hf auth login"),
        ({"private": True}, "hf_other", "missing", "check the name"),
        ({"private": True}, "hf_good", None, ""),
        ({}, "hf_wrong", "unauthorised", "another HF_TOKEN"),
    ],
)
def test_who_may_read_it(hub: Hub, more: dict[str, Any], token: str | None, code: str | None, hint: str) -> None:
    hub.add("org/m", FILES, **more)
    hub.tokens = {"hf_good": {"org/m"}, "hf_other": set()}
    if code is None:
        snapshot = HubClient(hub.url, token).snapshot(repository())
        assert snapshot.needs_token == bool(more) and snapshot.closed is None
    elif code == "gated":
        closed = HubClient(hub.url, token).snapshot(repository()).closed
        assert closed is not None and closed.code == code and hint in closed.hint
    else:
        refused = HubClient(hub.url, token).refused(repository())
        assert refused.code == code and hint in refused.hint
        assert "hf_" not in refused.message + refused.hint


def test_a_hub_that_names_a_time_is_waited_for(hub: Hub) -> None:
    hub.add("org/m", FILES)
    hub.faults.append(Fault("/revision/", status=429, headers={"Retry-After": "9"}))
    client = HubClient(hub.url)
    client.snapshot(repository())
    assert client.waited == [9.0]
    assert client.messages == ["too many requests (429): the hub says to wait 9 s; asking again in 9 s"]


def test_nobody_answers() -> None:
    refused = HubClient("http://me:secret@127.0.0.1:9").refused(repository())
    assert refused.code == "offline" and "secret" not in refused.message + refused.hint


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a\\b"])
def test_a_repository_with_an_unsafe_name_is_refused_whole(hub: Hub, name: str) -> None:
    hub.add("org/m", {**FILES, name: b"x"})
    assert HubClient(hub.url).refused(repository()).code == "hostile"


def test_an_unreachable_hub_has_its_last_known_listing(hub: Hub) -> None:
    hub.add("org/m", FILES)
    snapshot = HubClient(hub.url).snapshot(repository())
    hub.faults.append(Fault("/revision/", status=503, times=99))
    last = HubClient(hub.url).refused(repository()).last
    assert last is not None and (last.commit, last.files) == (snapshot.commit, snapshot.files)
    assert HubClient(hub.url).refused(repository(include=("*.json",))).last is None, "another part is another question"
