"""The script that downloads, run by bash with the real `hf`; and what its log says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from ci_tasks.agent.docker_argv import parse_run
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.features.prefetch.hub import HubRepository, Listing, command, files_query, host_state, outcomes, script
from tests.features.prefetch.hub_server import Hub, Repo
from tests.parts.processes import LocalQueryRunner

FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": bytes(range(256)) * 512}
BIN = Path(sys.executable).parent


@pytest.fixture
def repo(hub: Hub) -> Repo:
    return hub.add("org/m", dict(FILES))


def wanted(repo: Repo, directory: str, **more: Any) -> HubRepository:
    return HubRepository(repo.kind, repo.id, directory, **more)


def run(hub: Hub, where: Path, repository: HubRepository) -> tuple[int, str]:
    (where / "bin").mkdir(parents=True)
    (where / "bin/docker").touch(0o755)
    (where / "run.sh").write_text(script([command(repository, repository.directory)]))
    env = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(where), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["bash", str(where / "run.sh")], env=env, capture_output=True, text=True, timeout=60)
    log = done.stdout + done.stderr
    (where / "log").write_text(log)
    return done.returncode, log


def state(pending: HubRepository, repo: Repo) -> Any:
    listing = Listing(repo.sha, {path: len(text) for path, text in repo.files.items()})
    query = files_query(pending, pending.directory, listing)
    found = host_state(LocalQueryRunner().run_queries({"q": query}, 20)["q"])
    assert found
    return found["state"]


@pytest.mark.parametrize("in_cache", [False, True])
def test_a_download_counts_as_there_and_is_not_requested_again(
    hub: Hub, repo: Repo, tmp_path: Path, in_cache: bool
) -> None:
    pending = wanted(repo, str(tmp_path / "it's a disk"), in_cache=in_cache)
    assert state(pending, repo) == "missing"
    code, log = run(hub, tmp_path / "run", pending)
    assert (code, outcomes(RunDir(str(tmp_path / "run")))[0][0]) == (0, 0), log
    assert state(pending, repo) == "there"
    hub.contents.clear()
    option: dict[str, Any] = {"cache_dir" if in_cache else "local_dir": tmp_path / "it's a disk"}
    there = Path(snapshot_download("org/m", endpoint=hub.url, **option))
    assert {name: (there / name).read_bytes() for name in FILES} == FILES
    assert hub.contents == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda top: (top / "config.json").write_text("{ }"), "partly"),
        (lambda top: (top / "sub/notes.txt").unlink(), "partly"),
        (lambda top: (top / ".cache/huggingface/download/config.json.metadata").unlink(), "partly"),
        (lambda top: os.utime(top / "config.json", (time.time() + 60,) * 2), "partly"),
        (lambda top: None, "there"),
    ],
    ids=["changed", "removed", "unknown", "touched", "whole"],
)
def test_files_are_trusted_as_library_trusts_them(hub: Hub, repo: Repo, tmp_path: Path, change: Any, word: str) -> None:
    pending = wanted(repo, str(tmp_path / "m"))
    snapshot_download("org/m", endpoint=hub.url, local_dir=tmp_path / "m")
    change(tmp_path / "m")
    assert state(pending, repo) == word


def test_a_container_has_the_rows_mounts_and_no_secret_is_in_its_arguments(repo: Repo) -> None:
    options = "--gpus all --privileged -v /ci/m:/root/models -v $HERE:/x -v $M:/d -e WANDB_API_KEY=abc --network host"
    container = parse_run(f"run {options} IMAGE python t.py".split())
    docker = command(wanted(repo, "~/m1"), "/home/me/m1", container, {"M": "/data"}, ["HF_HOME"])
    assert docker.startswith("docker run --rm --volume=/ci/m:/root/models --volume=/data:/d --network=host -e ")
    assert {"HF_TOKEN", "HF_HOME"} <= set(docker.split()) and "abc" not in docker
    assert docker.endswith(" --entrypoint hf IMAGE download org/m --revision main --local-dir /root/m1")


def test_a_repository_of_many_files_is_queried_in_arguments_that_linux_takes() -> None:
    listing = Listing("a" * 40, {os.urandom(16).hex(): 1 for _ in range(20_000)})
    question = files_query(HubRepository("model", "org/m", "/nowhere"), "/nowhere", listing)
    assert max(map(len, question)) < 1 << 17 and len(question) > 5
    found = host_state(LocalQueryRunner().run_queries({"q": question}, 20)["q"])
    assert found and (found["missing"], found["mount"]) == (20_000, "/")
