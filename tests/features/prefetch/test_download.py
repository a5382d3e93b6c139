"""The script that downloads, run by bash with the real `hf`; and what its log says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import snapshot_download

from ci_tasks.agent.containers.docker_argv import parse_run
from ci_tasks.features.prefetch.download import Download, Outcome, outcomes, script
from ci_tasks.features.prefetch.hub_errors import HubFile, RepoSnapshot
from ci_tasks.features.prefetch.inventory import FolderState, files_query, folder_state
from ci_tasks.features.prefetch.repositories import HubRepository
from ci_tasks.features.prefetch.requirements import RequiredRepository
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.planning.host_paths import HostPath

if TYPE_CHECKING:
    from tests.features.prefetch.hub_server import Fault, Hub, Repo, etag
else:
    from ci_tasks_tests_hub_server import Fault, Hub, Repo, etag

FILES = {"config.json": b"{}", "sub/notes.txt": b"notes", "model.safetensors": bytes(range(256)) * 512}
CHUNK = 10 << 20  # bytes after which huggingface_hub writes, and from which it resumes
BIN = Path(sys.executable).parent


@pytest.fixture
def repo(hub: Hub) -> Repo:
    return hub.add("org/m", dict(FILES))


def download(repo: Repo, directory: str, number: int = 0, container: str = "", **more: Any) -> Download:
    repository = HubRepository(repo.kind, repo.id, directory, **more)
    files = tuple(HubFile(path, len(text), etag(text)) for path, text in repo.files.items() if repository.takes(path))
    run = parse_run(container.split()) if container else None
    return Download(
        number,
        RequiredRepository(repository, HostPath(directory), ["row"], ["t.py:1"]),
        RepoSnapshot(repo.sha, files),
        run,
        {},
    )


def start(hub: Hub, where: Path, *downloads: Download, path: str = str(BIN)) -> subprocess.Popen[str]:
    (where / "bin").mkdir(parents=True, exist_ok=True)
    (where / "bin/docker").touch(0o755)
    (where / "run.sh").write_text(script(downloads, str(where / "venv"), []))
    env = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(where), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"}
    argv = ["bash", str(where / "run.sh")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(argv, env=env, start_new_session=True, **pipes)


def run(hub: Hub, where: Path, *downloads: Download, path: str = str(BIN)) -> tuple[int, str]:
    process = start(hub, where, *downloads, path=path)
    log, _ = process.communicate()
    return process.returncode, log


def state(pending: Download) -> FolderState:
    folder = folder_state(
        LocalQueryRunner().run_queries({"q": files_query(pending.item, pending.snapshot)}, 20)["q"], pending.snapshot
    )
    assert isinstance(folder, FolderState), folder
    return folder


@pytest.mark.parametrize("layout", ["files", "cache"])
def test_a_download_counts_as_there_and_is_not_requested_again(
    hub: Hub, repo: Repo, tmp_path: Path, layout: str
) -> None:
    pending = download(repo, str(tmp_path / "it's a disk"), layout=layout)
    assert (state(pending).state, state(pending).missing) == ("missing", sum(map(len, FILES.values())))
    code, log = run(hub, tmp_path / "run", pending)
    assert (code, outcomes(log)[0].code) == (0, 0), log
    assert state(pending).state == "there"
    forget(hub)
    option: dict[str, Any] = {"local_dir" if layout == "files" else "cache_dir": tmp_path / "it's a disk"}
    there = Path(snapshot_download("org/m", endpoint=hub.url, **option))
    assert {name: (there / name).read_bytes() for name in FILES} == FILES
    assert hub.contents() == []


def test_a_home_is_that_of_whoever_runs_it(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    run(hub, tmp_path, download(repo, "~/my models"))
    assert (tmp_path / "my models/config.json").exists()


def test_a_part_is_named_file_by_file(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    pending = download(repo, str(tmp_path / "m"), include=("*.json", "sub/"))
    assert run(hub, tmp_path, pending)[0] == 0
    assert state(pending).state == "there" and not (tmp_path / "m/model.safetensors").exists()


def test_a_dataset_is_one(hub: Hub, tmp_path: Path) -> None:
    pending = download(hub.add("org/d", {"train.jsonl": b"{}"}, kind="dataset"), str(tmp_path / "d"))
    assert run(hub, tmp_path, pending)[0] == 0 and state(pending).state == "there"


def test_one_that_fails_does_not_keep_the_others_from_coming(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    gated = download(hub.add("org/gated", {"a": b"a"}, gated="manual"), str(tmp_path / "g"))
    code, log = run(hub, tmp_path, gated, download(repo, str(tmp_path / "m"), number=1))
    results = outcomes(log)
    assert (code, results[0].code, results[1].code) == (1, 1, 0)
    assert "requires approval" in results[0].output and "requires approval" not in results[1].output


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
def test_files_are_trusted_as_the_library_trusts_them(
    hub: Hub, repo: Repo, tmp_path: Path, change: Any, word: str
) -> None:
    pending = download(repo, str(tmp_path / "m"))
    snapshot_download("org/m", endpoint=hub.url, local_dir=tmp_path / "m")
    change(tmp_path / "m")
    assert state(pending).state == word


def test_a_new_commit_makes_changed_files_missing(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    snapshot_download("org/m", endpoint=hub.url, local_dir=tmp_path / "m")
    repo.files["config.json"] = b"[]"
    assert state(download(repo, str(tmp_path / "m"))).missing == 2


def test_a_transfer_that_the_hub_cuts_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    repo = hub.add("org/large", {"model.safetensors": os.urandom(CHUNK + 500_000)})
    hub.storage.faults.append(Fault("model.safetensors", cut=CHUNK + 1000))  # type: ignore[union-attr]
    pending = download(repo, str(tmp_path / "m"))
    assert run(hub, tmp_path, pending)[0] == 0 and state(pending).state == "there"
    ranges = [request.range for request in hub.storage.requests if request.method == "GET"]  # type: ignore[union-attr]
    assert ranges == ["", f"bytes={CHUNK}-"]


def test_after_a_kill_the_same_script_brings_the_rest_and_an_old_orphan_goes(
    hub: Hub, repo: Repo, tmp_path: Path
) -> None:
    gate, pending = threading.Event(), download(repo, str(tmp_path / "m"))
    hub.storage.faults.append(Fault("model.safetensors", gate=gate, cut=0))  # type: ignore[union-attr]
    process = start(hub, tmp_path, pending)
    until(lambda: (tmp_path / "m/.cache/huggingface/download/config.json.metadata").exists())  # written after the file
    until(lambda: len(list((tmp_path / "m").rglob("*.incomplete"))) == 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    gate.set()
    (orphan,) = (tmp_path / "m").rglob("*.incomplete")
    os.utime(orphan, (time.time() - 7200,) * 2)
    forget(hub)
    assert run(hub, tmp_path, pending)[0] == 0 and state(pending).state == "there"
    assert "config.json" not in hub.contents() and not orphan.exists()


def test_two_at_once_download_each_file_once(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    gate, pending = threading.Event(), download(repo, str(tmp_path / "m"))
    hub.storage.faults.append(Fault("model.safetensors", gate=gate))  # type: ignore[union-attr]
    first = start(hub, tmp_path / "a", pending)
    until(lambda: hub.storage.contents())  # type: ignore[union-attr]
    second = start(hub, tmp_path / "b", pending)
    until(lambda: sum("/revision/" in request.path for request in hub.requests) == 2)
    gate.set()
    assert first.communicate() and second.communicate() and first.returncode == second.returncode == 0
    assert state(pending).state == "there"
    assert [request.method for request in hub.storage.requests] == ["GET"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["hf", "huggingface-cli"])
def test_the_hosts_own_program_is_used_under_either_name(hub: Hub, repo: Repo, tmp_path: Path, name: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).symlink_to(BIN / "hf")
    assert run(hub, tmp_path, download(repo, str(tmp_path / "m")), path=str(tmp_path / "bin"))[0] == 0


def test_a_host_without_one_uses_the_venv_that_was_made_for_it(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/hf").symlink_to(BIN / "hf")
    (tmp_path / "venv/ready").touch()
    code, log = run(hub, tmp_path, download(repo, str(tmp_path / "m")), path="/nowhere")
    assert code == 0 and f"using {tmp_path}/venv" in log


def test_rows_of_one_container_share_it_and_no_secret_is_in_its_arguments(repo: Repo) -> None:
    options = "--gpus all --privileged -v /ci/m:/root/models -v $HERE:/x -e WANDB_API_KEY=abc --network host"
    command = f"run {options} IMAGE python t.py"
    first, second = (download(repo, f"~/m{number}", number, command) for number in (0, 1))
    text = script([first, second], "/venv", ["HF_HOME"])
    (docker,) = (line for line in text.splitlines() if line.startswith("docker run"))
    for kept in (
        "--volume=/ci/m:/root/models",
        "--network=host",
        "-e HF_TOKEN",
        "-e HF_HOME",
        "--entrypoint bash IMAGE",
    ):
        assert kept in docker
    for left in ("gpus", "privileged", "abc", "HERE", "python"):
        assert left not in docker
    assert "download 1 /root/m1 org/m --revision main --local-dir /root/m1" in text


def test_a_container_downloads_to_its_own_path_and_the_host_to_where_that_is_there(repo: Repo) -> None:
    inside, outside = download(repo, "/root/models", 0, "run -v /data/m:/root/models IMAGE"), download(repo, "/m", 1)
    inside, outside = (replace(it, item=replace(it.item, place=HostPath("/data/m"))) for it in (inside, outside))
    text = script([inside, outside], "/venv", [])
    assert "download 0 /root/models org/m --revision main --local-dir /root/models\n" in text
    assert "download 1 /data/m org/m --revision main --local-dir /data/m\n" in text


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", {}),
        ("##[ci-tasks] download 2 begins\nFetching\r 10%", {2: Outcome(None, "\nFetching\r 10%")}),
        ("##[ci-tasks] download 0 begins\na\n##[ci-tasks] download 0 ended 1\n", {0: Outcome(1, "\na\n")}),
    ],
)
def test_a_log_says_how_each_download_ended(log: str, expected: dict[int, Outcome]) -> None:
    assert outcomes(log) == expected


def test_a_repository_of_many_files_is_queried_in_arguments_that_linux_takes() -> None:
    files = tuple(HubFile(f"{os.urandom(16).hex()}", 1, "a" * 40) for _ in range(20_000))
    required = RequiredRepository(HubRepository("model", "org/m", "/nowhere"), HostPath("/nowhere"), [], [])
    snapshot = RepoSnapshot("a" * 40, files)
    question = files_query(required, snapshot)
    assert max(map(len, question)) < 1 << 17 and len(question) > 5
    folder = folder_state(LocalQueryRunner().run_queries({"q": question}, 20)["q"], snapshot)
    assert isinstance(folder, FolderState) and (folder.absent, folder.mount) == (20_000, "/")


def forget(hub: Hub) -> None:
    """What was asked so far."""
    hub.requests.clear()
    if hub.storage:
        hub.storage.requests.clear()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
