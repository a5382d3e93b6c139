"""What a hub of the test's own says of a repository, asked through the real huggingface_hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.hub import asking
from ci_tasks.hub.found import Found, Refusal
from ci_tasks.suites.prefetch.wants import Repository

if TYPE_CHECKING:
    from tests.hub.hub_server import Fault, Hub
else:
    from ci_tasks_tests_hub_server import Fault, Hub

LARGE = b"w" * 5000
FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": LARGE}


def repository(id: str = "org/m", **more: Any) -> Repository:
    return Repository(**{"kind": "model", "id": id, "directory": "/root/models/m", **more})


class Asked:
    """A hub that is asked with one token; how long it was waited for is kept."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.said: list[str] = []
        self.waited: list[float] = []
        self._hub = asking.Hub(url, token, self.said.append, self.waited.append)

    def found(self, wanted: Repository) -> Found:
        answer = self._hub.find(wanted)
        assert isinstance(answer, Found), answer
        return answer

    def refused(self, wanted: Repository) -> Refusal:
        answer = self._hub.find(wanted)
        assert isinstance(answer, Refusal), answer
        return answer


def test_commit_size_and_checksums_of_the_files_that_are_wanted(hub: Hub) -> None:
    repo = hub.add("org/m", FILES)
    found = Asked(hub.url).found(repository())
    assert (found.commit, found.size, found.gated, found.private) == (repo.sha, 5007, "", False)
    assert {file.path: len(file.etag) for file in found.files} == {
        "config.json": 40,
        "sub/notes.txt": 40,
        "model.safetensors": 64,
    }


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ({"include": ("*.json",)}, ["config.json"]),
        ({"exclude": ("*.safetensors", "sub/")}, ["config.json"]),
        ({"include": ("sub/",)}, ["sub/notes.txt"]),
        ({"include": ("*",), "exclude": ("*.txt",)}, ["config.json", "model.safetensors"]),
    ],
)
def test_patterns_choose_files_as_the_library_does(hub: Hub, wanted: dict[str, Any], files: list[str]) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    hub.add("org/m", FILES)
    assert [file.path for file in Asked(hub.url).found(repository(**wanted)).files] == files
    allow, ignore = list(wanted.get("include", ())) or None, list(wanted.get("exclude", ())) or None
    assert list(filter_repo_objects(FILES, allow_patterns=allow, ignore_patterns=ignore)) == files


@pytest.mark.parametrize(
    ("more", "token", "code", "hint"),
    [
        ({}, None, None, ""),
        ({"gated": "manual"}, None, "gated", "accept its terms"),
        ({"gated": "auto"}, "hf_other", "gated", "accept its terms"),
        ({"gated": "auto"}, "hf_good", None, ""),
        ({"private": True}, None, "unauthorised", "hf auth login"),
        ({"private": True}, "hf_other", "missing", "check the name"),
        ({"private": True}, "hf_good", None, ""),
        ({}, "hf_wrong", "unauthorised", "another token"),
    ],
)
def test_who_may_read_it(hub: Hub, more: dict[str, Any], token: str | None, code: str | None, hint: str) -> None:
    hub.add("org/m", FILES, **more)
    hub.tokens = {"hf_good": {"org/m"}, "hf_other": set()}
    if code is None:
        found = Asked(hub.url, token).found(repository())
        assert found.wants_token == bool(more) and found.closed is None
    elif code == "gated":
        closed = Asked(hub.url, token).found(repository()).closed
        assert closed is not None and closed.code == code and hint in closed.hint
    else:
        refused = Asked(hub.url, token).refused(repository())
        assert refused.code == code and hint in refused.hint
        assert "hf_" not in refused.message + refused.hint


def test_a_name_that_is_not_there(hub: Hub) -> None:
    assert Asked(hub.url).refused(repository("org/none")).code == "unauthorised"  # as the hub answers strangers
    assert Asked(hub.url, "hf_any").refused(repository("org/none")).code == "missing"


def test_a_revision_that_is_not_there(hub: Hub) -> None:
    hub.add("org/m", FILES)
    refused = Asked(hub.url).refused(repository(revision="v9"))
    assert refused.code == "missing" and "revision" in refused.message


def test_a_file_that_is_not_there(hub: Hub) -> None:
    hub.add("org/m", FILES)
    assert Asked(hub.url).refused(repository(include=("none.json",))).code == "missing"


def test_a_hub_that_names_a_time_is_waited_for(hub: Hub) -> None:
    hub.add("org/m", FILES)
    hub.faults.append(Fault("/revision/", status=429, headers={"Retry-After": "9"}))
    asked = Asked(hub.url)
    asked.found(repository())
    assert asked.waited == [9.0]
    assert asked.said == ["the hub answers no more for now (429); it names 9 s; asking again in 9 s"]


def test_a_hub_that_names_too_long_a_time_is_not(hub: Hub) -> None:
    hub.add("org/m", FILES)
    hub.faults.append(Fault("/revision/", status=429, headers={"Retry-After": "3000"}))
    asked = Asked(hub.url)
    refused = asked.refused(repository())
    assert (refused.code, asked.waited) == ("limited", [])
    assert "3000 s" in refused.message and "HF_TOKEN" in refused.hint


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"ratelimit": '"api";r=0;t=55'}, 56.0),
        ({}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
    ],
)
def test_how_long_a_hub_asks_to_be_left_alone(headers: dict[str, str], seconds: float) -> None:
    assert asking.wait_of(headers, 1) == seconds


def test_a_hub_in_trouble_is_asked_again(hub: Hub) -> None:
    hub.add("org/m", FILES)
    hub.faults.append(Fault("/revision/", status=503, times=2))
    asked = Asked(hub.url)
    asked.found(repository())
    assert asked.waited == [1.0, 2.0]


def test_a_hub_that_stays_in_trouble(hub: Hub) -> None:
    hub.faults.append(Fault("/revision/", status=503, times=99))
    assert Asked(hub.url).refused(repository()).code == "trouble"


def test_nobody_answers() -> None:
    refused = Asked("http://me:secret@127.0.0.1:9").refused(repository())
    assert refused.code == "offline" and "secret" not in refused.message + refused.hint


def test_the_library_is_told_to_stay_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Asked("http://127.0.0.1:9").refused(repository()).code == "offline"


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a\\b"])
def test_a_repository_with_an_unsafe_name_is_refused_whole(hub: Hub, name: str) -> None:
    hub.add("org/m", {**FILES, name: b"x"})
    assert Asked(hub.url).refused(repository()).code == "hostile"


def test_the_token_is_the_environments_or_the_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asking.token_here() is None
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert asking.token_here() == "hf_mine"


def test_the_endpoint_is_the_hosts_then_ours_then_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asking.endpoint_of({}) == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert asking.endpoint_of({}) == "https://mirror.example"
    assert asking.endpoint_of({"HF_ENDPOINT": "https://box.example"}) == "https://box.example"
