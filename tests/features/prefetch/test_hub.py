"""What a hub of the test's own says of a repository, asked through the real huggingface_hub."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.features.prefetch import hub as asking
from ci_tasks.features.prefetch.hub import HubError, HubRepository, Listing
from tests.features.prefetch.hub_server import Hub

LARGE = b"w" * 5000
FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": LARGE}


def find(url: str, token: str | None = None, **more: Any) -> Listing | HubError:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.get_token", lambda: token)
        hub = asking.Hub({"HF_ENDPOINT": url})
    return hub.find(HubRepository(**{"kind": "model", "id": "org/m", "directory": "/root/models/m", **more}))


def test_commit_and_sizes_of_the_files(hub: Hub) -> None:
    repo = hub.add("org/m", FILES)
    assert find(hub.url) == Listing(repo.sha, {name: len(content) for name, content in FILES.items()})
    assert hub.contents == [], "nothing is downloaded"


READERS = [
    ({}, None, None, ""),
    ({"gated": "manual"}, None, "gated", "accept its terms"),
    ({"gated": "auto"}, "hf_other", "gated", "accept its terms"),
    ({"private": True}, None, "not found", "hf auth login"),
    ({"private": True}, "hf_other", "not found", "check the name"),
    ({"private": True}, "hf_good", None, ""),
    ({}, "hf_wrong", "not found", "set HF_TOKEN"),
]


@pytest.mark.parametrize(("more", "token", "problem", "hint"), READERS)
def test_who_may_read_it(hub: Hub, more: dict[str, Any], token: str | None, problem: str | None, hint: str) -> None:
    hub.add("org/m", FILES, **more)
    hub.tokens = {"hf_good": {"org/m"}, "hf_other": set()}
    found = find(hub.url, token)
    if problem is None:
        assert isinstance(found, Listing) and found.needs_token == bool(more) and found.closed is None
        return
    error = found.closed if isinstance(found, Listing) else found
    assert error is not None and error.problem == problem
    assert hint in error.hint and "hf_" not in error.message + error.hint


def test_nobody_answers() -> None:
    error = find("http://me:secret@127.0.0.1:9")
    assert isinstance(error, HubError) and error.problem == "offline"
    assert "secret" not in error.message + error.hint
