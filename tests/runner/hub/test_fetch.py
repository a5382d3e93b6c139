"""A repository brought to this machine from a hub of the test's own, through every way in which that goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.runner.hub import fetch as hub_fetch
from ci_tasks.runner.hub import transfer
from ci_tasks.runner.hub.fetch import fetch, look
from ci_tasks.runner.hub.refused import HubRefused
from ci_tasks.runner.hub.transfer import Stopped

if TYPE_CHECKING:
    from tests.hub.hub_server import Fault, Hub, Repo, etag
else:
    from ci_tasks_tests_hub_server import Fault, Hub, Repo, etag

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": WEIGHTS, "empty": b""}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are not waited for."""
    monkeypatch.setattr(transfer.Client, "_pause", lambda self, seconds: None)
    monkeypatch.setattr(transfer, "CHUNK", 1 << 14)


@pytest.fixture
def repo(hub: Hub) -> Repo:
    return hub.add("org/m", dict(FILES))


def wanted(hub: Hub, repo: Repo, directory: Path, **more: Any) -> dict[str, Any]:
    return {
        "kind": repo.kind,
        "id": repo.id,
        "revision": "main",
        "commit": repo.sha,
        "layout": "files",
        "endpoint": hub.url,
        "directory": str(directory),
        "files": [[path, len(content), etag(content)] for path, content in repo.files.items()],
        **more,
    }


def bring(given: dict[str, Any], token: str | None = None, **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    return fetch(given, token, told.append, **more), told


def refused(given: dict[str, Any], token: str | None = None) -> HubRefused:
    with pytest.raises(HubRefused) as caught:
        bring(given, token)
    return caught.value


def has(directory: Path, files: dict[str, bytes] = FILES) -> bool:
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    return found == files


# -- there, partly, missing ------------------------------------------------------------------------------------------


def test_what_is_missing_is_brought_and_then_counts_as_there(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    given = wanted(hub, repo, tmp_path / "m")
    assert look(given)["files"] == {"there": 0, "unsure": 0, "part": 0, "absent": 4}
    answer, told = bring(given)
    assert answer == {"files": 4, "bytes": sum(map(len, FILES.values()))}
    assert has(tmp_path / "m")
    assert told[-1]["done"] == told[-1]["total"] == answer["bytes"]
    assert look(given)["files"]["there"] == 4 and look(given)["missing"] == 0


def test_looking_changes_nothing(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    look(wanted(hub, repo, tmp_path / "m"))
    assert list(tmp_path.iterdir()) == []
    assert hub.asked == []


def test_what_is_there_is_not_asked_for_again(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    given = wanted(hub, repo, tmp_path / "m")
    bring(given)
    asked = len(hub.asked)
    assert bring(given)[0] == {"files": 0, "bytes": 0}
    assert len(hub.asked) == asked


def test_files_that_somebody_copied_there_are_checked_and_kept(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(FILES["config.json"])
    (tmp_path / "model.safetensors").write_bytes(b"x" * len(WEIGHTS))
    given = wanted(hub, repo, tmp_path)
    assert look(given)["files"]["unsure"] == 2
    bring(given)
    assert "config.json" not in hub.contents()
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_file_that_was_cut_short_or_changed_since_is_brought_anew(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    given = wanted(hub, repo, tmp_path)
    bring(given)
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS[:100])
    (tmp_path / "config.json").write_bytes(b"[]")
    os.utime(tmp_path / "config.json", (time.time() + 60, time.time() + 60))
    assert look(given)["files"]["there"] == 2
    bring(given)
    assert has(tmp_path)


def test_a_new_commit_brings_only_what_changed(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    bring(wanted(hub, repo, tmp_path))
    repo.files["config.json"], repo.sha = b'{"a": 1}', "b" * 40
    hub.asked.clear()
    assert bring(wanted(hub, repo, tmp_path))[0]["files"] == 1
    assert hub.contents()[:1] == ["config.json"]
    note = tmp_path / ".cache/huggingface/download/sub/notes.txt.metadata"
    assert note.read_text().splitlines()[0] == "b" * 40


# -- cut, resumed, concurrent ----------------------------------------------------------------------------------------


def test_a_transfer_that_the_hub_cuts_goes_on_where_it_stopped(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    assert hub.storage is not None
    hub.storage.faults += [Fault("model.safetensors", cut=100_000), Fault("model.safetensors", cut=200_000)]
    bring(wanted(hub, repo, tmp_path))
    assert has(tmp_path)
    ranges = [one.range for one in hub.storage.asked if "model" in one.path]
    assert ranges == ["", "bytes=100000-", "bytes=300000-"]


def test_a_process_that_is_killed_leaves_what_the_next_goes_on_with(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    assert hub.storage is not None
    hub.storage.faults += [Fault("model", cut=500_000), Fault("model", gate=threading.Event(), cut=0)]
    first = _process(wanted(hub, repo, tmp_path))
    while len([one for one in hub.storage.asked if "model" in one.path]) < 2:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    hub.storage.faults.clear()
    assert look(wanted(hub, repo, tmp_path))["bytes"]["part"] == 500_000
    assert bring(wanted(hub, repo, tmp_path))[0]["bytes"] < len(WEIGHTS)
    assert has(tmp_path)


def test_what_an_older_library_left_half_done_is_gone_on_with(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    """Its name for the file is huggingface_hub's until 1.0: base64 of the sha1 of the note's name, and the etag."""
    notes = tmp_path / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    part = notes / f"{_SHORT}.{etag(WEIGHTS)}.incomplete"
    part.write_bytes(WEIGHTS[:700_000])
    bring(wanted(hub, repo, tmp_path))
    assert hub.storage is not None
    assert [one.range for one in hub.storage.asked if "model" in one.path] == ["bytes=700000-"]
    assert has(tmp_path) and not part.exists()


def test_a_part_that_is_something_else_is_begun_anew(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    notes = tmp_path / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (notes / f"{_SHORT}.{etag(WEIGHTS)}.incomplete").write_bytes(b"something else")
    bring(wanted(hub, repo, tmp_path))
    assert has(tmp_path)


def test_two_processes_bring_a_repository_once_and_the_second_waits(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    assert hub.storage is not None
    gate = threading.Event()
    hub.storage.faults.append(Fault("model", gate=gate))
    given = wanted(hub, repo, tmp_path)
    first = _process(given)
    while not hub.storage.asked:
        time.sleep(0.01)
    told: list[dict[str, Any]] = []

    def hear(news: dict[str, Any]) -> None:
        told.append(news)
        if news.get("waits"):
            gate.set()

    answer = fetch(given, None, hear)
    assert (first.communicate()[0], first.returncode) == ("", 0)
    assert {"waits": True} in told
    assert answer == {"files": 0, "bytes": 0}
    assert sorted(set(hub.contents())) == sorted(path for path in FILES if path != "empty")
    assert len([one for one in hub.storage.asked if one.method == "GET"]) == 1


def test_stopping_ends_it_and_leaves_a_part(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    stop = threading.Event()

    def hear(news: dict[str, Any]) -> None:
        stop.set()

    with pytest.raises(Stopped):
        fetch(wanted(hub, repo, tmp_path), None, hear, stop=stop)
    assert not has(tmp_path)


# -- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (401, {}, "unauthorised"),
        (403, {"X-Error-Code": "GatedRepo"}, "gated"),
        (401, {"X-Error-Code": "GatedRepo"}, "gated"),
        (404, {"X-Error-Code": "EntryNotFound"}, "missing"),
        (418, {}, "trouble"),
    ],
)
def test_an_answer_that_no_waiting_changes(
    hub: Hub, repo: Repo, tmp_path: Path, status: int, headers: dict[str, str], code: str
) -> None:
    hub.faults.append(Fault("config.json", status=status, headers=headers))
    assert refused(wanted(hub, repo, tmp_path)).code == code
    assert [one.path for one in hub.asked].count("/org/m/resolve/" + "a" * 40 + "/config.json") == 1


def test_a_hub_that_asks_for_patience_gets_it(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.faults.append(Fault("config.json", status=429, headers={"Retry-After": "7"}, times=2))
    _, told = bring(wanted(hub, repo, tmp_path))
    assert has(tmp_path)
    assert [news["note"] for news in told if "note" in news] == [
        "the hub answers no more for now: too many requests (429); waiting 7 s"
    ] * 2


def test_a_hub_that_asks_for_too_much_patience_is_left(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.faults.append(Fault("config.json", status=429, headers={"Retry-After": "3600"}, times=99))
    found = refused(wanted(hub, repo, tmp_path))
    assert found.code == "limited" and "wait" in found.message


def test_a_hub_in_trouble_is_asked_again_a_few_times(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.faults.append(Fault("config.json", status=503, times=2))
    bring(wanted(hub, repo, tmp_path))
    assert has(tmp_path)


def test_nobody_answers(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    found = refused(wanted(hub, repo, tmp_path, endpoint="http://127.0.0.1:9"))
    assert found.code == "offline" and "refused" in found.message


def test_content_that_is_not_what_the_hub_said_is_no_file(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.faults.append(Fault("config.json", content=b"[]", times=99))
    assert refused(wanted(hub, repo, tmp_path)).code == "checksum"
    assert not (tmp_path / "config.json").exists()


def test_the_token_goes_to_the_hub_and_to_no_storage(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    repo.gated, hub.tokens = "manual", {"hf_good": {"org/m"}}
    assert hub.storage is not None
    hub.storage.tokens = {"": {"org/m"}}
    bring(wanted(hub, repo, tmp_path), "hf_good")
    assert has(tmp_path)
    assert {one.token for one in hub.asked} == {"hf_good"}
    assert {one.token for one in hub.storage.asked} == {""}


def test_no_refusal_holds_the_token_or_a_signed_address(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    assert hub.storage is not None
    hub.storage.faults.append(Fault("model", status=403, times=99))
    found = refused(wanted(hub, repo, tmp_path), "hf_secret")
    assert "hf_secret" not in found.message and "Signature" not in found.message


# -- the disk --------------------------------------------------------------------------------------------------------


def test_a_disk_without_room_is_refused_before_anything_is_written(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_fetch, "SPARE", 1 << 60)
    assert refused(wanted(hub, repo, tmp_path / "m")).code == "full"
    assert hub.asked == []


def test_a_disk_that_fills_up_meanwhile_gets_its_room_back(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    done = _process(wanted(hub, repo, tmp_path), file_size=300_000)
    assert done.communicate()[0].startswith("full ")
    assert not list(tmp_path.rglob("*.incomplete"))
    bring(wanted(hub, repo, tmp_path))
    assert has(tmp_path)


def test_a_directory_of_somebody_else(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file where the directory should be")
    found = refused(wanted(hub, repo, tmp_path / "m"))
    assert found.code == "denied" and str(tmp_path / "m") in found.message


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("../out", "a/../../out", "/etc/passwd", "a//b", "./a", "a/.", "", "a\\..\\b", "C:x", "a\0b", "a\nb"),
        *(".cache/huggingface/download/x.metadata", ".CACHE/huggingface/x"),
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(hub: Hub, repo: Repo, tmp_path: Path, name: str) -> None:
    given = wanted(hub, repo, tmp_path / "m", files=[[name, 2, etag(b"{}")]])
    with pytest.raises(HubRefused) as caught:
        look(given)
    assert caught.value.code == "hostile"
    assert refused(given).code == "hostile"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"commit": "../x"}, {"files": [["a", 1, "../x"]]}, {"directory": "relative"}])
def test_hashes_and_directories_become_parts_of_paths_too(
    hub: Hub, repo: Repo, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert refused({**wanted(hub, repo, tmp_path), **change}).code == "hostile"


def test_a_link_that_leads_out_of_the_directory_is_not_followed(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "m").mkdir()
    (tmp_path / "m/sub").symlink_to(tmp_path / "elsewhere")
    assert refused(wanted(hub, repo, tmp_path / "m")).code == "hostile"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_that_is_itself_a_link_is_somebodys_wish(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "m").symlink_to(tmp_path / "large-disk")
    bring(wanted(hub, repo, tmp_path / "m"))
    assert has(tmp_path / "large-disk")


_SHORT = "xGOKKLRSlIhH692hSVvI1-gpoa8="
_PROGRAM = """
import json, resource, signal, sys
from ci_tasks.runner.hub import transfer
from ci_tasks.runner.hub.fetch import fetch
from ci_tasks.runner.hub.refused import HubRefused
transfer.CHUNK = 1 << 14
transfer.Client._pause = lambda self, seconds: None
given, limit = json.loads(sys.argv[1]), int(sys.argv[2])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    fetch(given, None, lambda news: None)
except HubRefused as refused:
    print(refused.code, refused.message)
"""


def _process(given: dict[str, Any], file_size: int = 0) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _PROGRAM, json.dumps(given), str(file_size)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
