"""What a hub of the test's own says of a repository, asked through the real huggingface_hub."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.features.prefetch import hub as asking
from ci_tasks.features.prefetch.hub import HubError, Listing
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
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("huggingface_hub.get_token", lambda: token)
            self.hub = asking.Hub({"HF_ENDPOINT": url}, self.messages.append, self.waited.append)

    def listing(self, repository: HubRepository) -> Listing:
        response = self.hub.find(repository)
        assert isinstance(response, Listing), response
        return response

    def refused(self, repository: HubRepository) -> HubError:
        response = self.hub.find(repository)
        assert isinstance(response, HubError), response
        return response


def test_commit_and_sizes_of_the_required_files(hub: Hub) -> None:
    repo = hub.add("org/m", FILES)
    listing = HubClient(hub.url).listing(repository(include=("*.json", "*.safetensors")))
    assert (listing.commit, listing.needs_token) == (repo.sha, False)
    assert listing.files == {"config.json": 2, "model.safetensors": 5000}
    assert hub.contents() == [], "nothing is downloaded"


@pytest.mark.parametrize(
    ("more", "token", "code", "hint"),
    [
        ({}, None, None, ""),
        ({"gated": "manual"}, None, "gated", "accept its terms"),
        ({"gated": "auto"}, "hf_other", "gated", "accept its terms"),
        ({"private": True}, None, "unauthorised", "hf auth login"),
        ({"private": True}, "hf_other", "missing", "check the name"),
        ({"private": True}, "hf_good", None, ""),
        ({}, "hf_wrong", "unauthorised", "set HF_TOKEN"),
    ],
)
def test_who_may_read_it(hub: Hub, more: dict[str, Any], token: str | None, code: str | None, hint: str) -> None:
    hub.add("org/m", FILES, **more)
    hub.tokens = {"hf_good": {"org/m"}, "hf_other": set()}
    client = HubClient(hub.url, token)
    if code is None:
        listing = client.listing(repository())
        assert listing.needs_token == bool(more) and listing.closed is None
        return
    error = client.listing(repository()).closed if code == "gated" else client.refused(repository())
    assert error is not None and error.code == code
    said = client.hub.hint(code, repository())
    assert hint in said and "hf_" not in error.message + said


def test_a_hub_that_names_a_time_is_waited_for(hub: Hub) -> None:
    hub.add("org/m", FILES)
    hub.faults.append(Fault("/revision/", status=429, headers={"Retry-After": "9"}))
    client = HubClient(hub.url)
    client.listing(repository())
    assert client.waited == [9.0]
    assert client.messages == ["too many requests (429); asking again in 9 s"]


def test_nobody_answers() -> None:
    client = HubClient("http://me:secret@127.0.0.1:9")
    error = client.refused(repository())
    assert error.code == "offline" and "secret" not in error.message + client.hub.hint("gated", repository())


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a\\b"])
def test_a_repository_with_an_unsafe_name_is_refused_whole(hub: Hub, name: str) -> None:
    hub.add("org/m", {**FILES, name: b"x"})
    # huggingface_hub 1.0 asks for `../out` by a URL that the hub has not.
    assert HubClient(hub.url).refused(repository()).code in ("hostile", "missing")
