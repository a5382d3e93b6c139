"""What a test's own `hf download` finds after a prefetch: everything. The library and its command are the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub._local_folder import get_local_download_paths

from ci_tasks.runner.hub.fetch import fetch, look
from ci_tasks.runner.hub.folders import File, Folder, Wanted

if TYPE_CHECKING:
    from tests.hub.hub_server import Hub, Repo, etag
else:
    from ci_tasks_tests_hub_server import Hub, Repo, etag

WEIGHTS = bytes(range(256)) * 512
FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": WEIGHTS, "empty": b""}


@pytest.fixture
def repo(hub: Hub) -> Repo:
    return hub.add("org/m", dict(FILES))


def prefetch(hub: Hub, repo: Repo, directory: Path, layout: str = "files", *only: str) -> dict[str, Any]:
    given = {
        "kind": repo.kind,
        "id": repo.id,
        "revision": "main",
        "commit": repo.sha,
        "layout": layout,
        "endpoint": hub.url,
        "directory": str(directory),
        "files": [[path, len(text), etag(text)] for path, text in repo.files.items() if not only or path in only],
    }
    fetch(given, None, lambda news: None)
    hub.asked.clear()
    if hub.storage:
        hub.storage.asked.clear()
    return given


def hf(hub: Hub, *words: str, **env: str) -> str:
    """The command as a test starts it."""
    program = Path(sys.executable).with_name("hf")
    switches = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    environ = {**os.environ, **switches, **env}
    done = subprocess.run([program, "download", *words], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_download_into_a_directory_fetches_nothing(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    prefetch(hub, repo, tmp_path / "m")
    hf(hub, "org/m", "--local-dir", str(tmp_path / "m"))
    assert hub.contents() == []
    assert hub.storage is not None and hub.storage.asked == []


def test_a_download_into_the_cache_fetches_nothing(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    prefetch(hub, repo, tmp_path / "hf/hub", "cache")
    snapshot = tmp_path / "hf/hub/models--org--m/snapshots" / repo.sha
    assert str(snapshot) in hf(hub, "org/m")
    assert hub.contents() == []
    assert {name: (snapshot / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "sub/notes.txt"])
def test_a_download_of_one_file_fetches_nothing(hub: Hub, repo: Repo, tmp_path: Path, file: str) -> None:
    prefetch(hub, repo, tmp_path, "files", file)
    hf_hub_download("org/m", file, endpoint=hub.url, local_dir=tmp_path)
    assert hub.contents() == []


def test_a_dataset_in_the_cache_has_its_own_place(hub: Hub, tmp_path: Path) -> None:
    repo = hub.add("org/d", {"train.jsonl": b"{}"}, kind="dataset")
    prefetch(hub, repo, tmp_path, "cache")
    there = snapshot_download("org/d", repo_type="dataset", cache_dir=tmp_path, local_files_only=True)
    assert there.endswith(repo.sha), "without the hub, the name of the revision leads to it"
    snapshot_download("org/d", repo_type="dataset", endpoint=hub.url, cache_dir=tmp_path)
    assert hub.contents() == []


@pytest.mark.parametrize(("layout", "option"), [("files", "local_dir"), ("cache", "cache_dir")])
def test_what_the_library_fetched_is_all_there(hub: Hub, repo: Repo, tmp_path: Path, layout: str, option: str) -> None:
    where: dict[str, Any] = {option: tmp_path}
    snapshot_download("org/m", endpoint=hub.url, **where)
    given = {
        "kind": "model",
        "id": "org/m",
        "revision": "main",
        "commit": repo.sha,
        "layout": layout,
        "endpoint": hub.url,
        "directory": str(tmp_path),
        "files": [[path, len(text), etag(text)] for path, text in FILES.items()],
    }
    assert look(given)["files"]["there"] == 4


def test_a_part_has_the_name_that_the_library_gave_it(tmp_path: Path) -> None:
    file = File("sub/model.safetensors", 10, "b" * 64)
    ours = Folder(Wanted("model", "org/m", "main", "a" * 40, str(tmp_path), "files", (file,)))
    theirs = get_local_download_paths(tmp_path, file.path)
    assert ours.incomplete(file) == str(theirs.incomplete_path(file.etag))
    assert ours.file_lock(file) == str(theirs.lock_path)
    assert ours.file(file) == str(theirs.file_path)
