"""The story of `prefetch` on this machine, with a hub and a checkout of the test's own. `hf` is the real one.
What a row's host is sent and asked, and what goes at its end, is `ci_tasks.hosts.executor`'s."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import config
from ci_tasks.agent.codec import encode
from ci_tasks.errors import Blocked
from ci_tasks.features.prefetch import prefetch
from ci_tasks.hosts.executor import open_executor
from ci_tasks.run.checkout_source import RunRequest, open_source
from ci_tasks.run.prepare import prepare
from tests.features.prefetch.hub_server import Hub
from tests.parts import git
from tests.published import check

WORKFLOW = """
jobs:
  e2e-test-short:
    runs-on: [self-hosted, cpu]
    strategy: {matrix: {info: [
      {test_file: test_one.py, num_gpus: 1}, {test_file: test_two.py, num_gpus: 1}, {test_file: test_unit.py}]}}
    steps:
      - {name: Execute, run: "python tests/${{ matrix.info.test_file }}"}
"""
TEST_ONE = """
import slime.utils.external_utils.command_utils as U
def prepare():
    U.exec_command("hf download org/m --local-dir DISK/models/m")
    U.exec_command("hf download --repo-type dataset org/d --local-dir DISK/datasets/d")
if __name__ == "__main__":
    prepare()
"""
TWO = """
import slime.utils.external_utils.command_utils as U
if __name__ == "__main__":
    U.exec_command("hf download org/m --local-dir DISK/models/m")
    U.exec_command("hf download org/elsewhere --local-dir m")
"""
WEIGHTS = b"w" * 100_000


class World:
    """A checkout, a hub and a host without containers, whose `hf` is the tested interpreter's."""

    def __init__(self, tmp_path: Path, disk: Path, hub: Hub, more: str = "") -> None:
        self.hub, self.disk = hub, disk
        self.repo = tmp_path / "repo"
        hub.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS})
        hub.add("org/d", {"train.jsonl": b"{}"}, kind="dataset")
        hub.add("org/elsewhere", {"a": b"a"})
        self.write("tests/test_one.py", TEST_ONE)
        self.write("tests/test_two.py", TWO)
        self.write("tests/test_unit.py", "def test_it(): pass")
        self.write(".github/workflows/pr-test.yml", WORKFLOW)
        git.repository(self.repo)
        self.config = config.read(
            f"hosts: {{box: {{kind: local, runtime: none, gpus: 8, simulate: true{more}}}, other: {{kind: local}}}}"
        )
        self.messages: list[str] = []

    def write(self, name: str, text: str) -> None:
        path = self.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("DISK", str(self.disk)))

    def prefetch(self, only: str | None = "one", json: bool = False, **more: Any) -> int:
        source = open_source(str(self.repo))
        given = (source, self.config, RunRequest("short", only, "box"), open_executor, self.messages.append)
        result = prefetch.prefetch_label(*given, **more)
        print(dumps(encode(result, versioned=False)) if json else "\n".join(prefetch.text(result)))
        return 125 if result.blocked else 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Iterator[World]:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as disk:  # what lies below /tmp is taken for a test's own
        yield World(tmp_path, Path(disk) / "disk", hub)


def table(capsys: pytest.CaptureFixture[str]) -> Any:
    return check("prefetch", json.loads(capsys.readouterr().out))


def test_a_dry_run_shows_everything_and_brings_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch(dry_run=True, json=True) == 0
    report = table(capsys)
    assert [(entry["kind"], entry["id"], entry["state"], entry["size"]) for entry in report["repositories"]] == [
        ("model", "org/m", "missing", 100_002),
        ("dataset", "org/d", "missing", 2),
    ]
    assert report["repositories"][0]["directory"] == f"{world.disk}/models/m"
    assert report["repositories"][0]["where"] == ["tests/test_one.py:4"]
    assert world.hub.contents == [] and not world.disk.exists()


def test_a_host_that_cannot_be_reached_comes_before_the_hub(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    world.config = config.read("hosts: {box: {kind: ssh, address: '127.0.0.1:9'}}")
    with pytest.raises(Blocked, match=r"127\.0\.0\.1:9 cannot be reached"):
        world.prefetch(dry_run=True)


def test_it_brings_what_is_missing_where_the_test_will_look(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch() == 0
    assert (world.disk / "models/m/model.safetensors").read_bytes() == WEIGHTS
    assert (world.disk / "datasets/d/train.jsonl").read_bytes() == b"{}"
    assert "repositories: 2 fetched" in capsys.readouterr().out
    assert any(f"fetching org/m (100.0 kB) to {world.disk}/models/m" in message for message in world.messages)
    assert not list((world.repo.parent / "home/runs").iterdir()), "a prefetch that succeeded leaves no run"
    assert world.prefetch(json=True) == 0
    assert {entry["state"] for entry in table(capsys)["repositories"]} == {"there"}


def test_a_repository_of_several_rows_stands_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch(None, json=True) == 0
    report = table(capsys)
    assert {entry["id"]: (len(entry["rows"]), entry["state"]) for entry in report["repositories"]} == {
        "org/m": (2, "fetched"),
        "org/d": (1, "fetched"),
        "org/elsewhere": (1, "not kept"),
    }


def test_a_gate_that_is_closed_blocks_and_says_what_to_do(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.hub.repos["model", "org/m"].gated = "manual"
    assert world.prefetch() == 125
    output = capsys.readouterr().out
    assert "org/m is gated" in output and f"accept its terms at {world.hub.url}/org/m" in output
    assert "tests/test_one.py:4" in output
    assert (world.disk / "datasets/d/train.jsonl").exists(), "what can be had is brought all the same"


def test_a_disk_too_small_for_all_of_them_gets_none(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "SPARE", 1 << 60)
    assert world.prefetch() == 125
    assert "disk full" in capsys.readouterr().out
    assert world.hub.contents == []


def test_before_a_run_everything_is_brought_and_rows_that_lack_something_are_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.hub.repos["dataset", "org/d"].gated = "auto"
    request = RunRequest("short", host="box", prefetch=True)
    ready = prepare(open_source(str(world.repo)), world.config, request, open_executor)
    ready.close()
    ((row, problem),) = ready.sessions[0].row_problems.items()
    assert "one" in row and "org/d (dataset) is gated" in problem
    assert (world.disk / "models/m/config.json").exists()
    assert "fetching org/m (100.0 kB) to " in capsys.readouterr().out


def test_a_gated_repository_that_is_on_the_host_already_blocks_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.prefetch() == 0
    world.hub.repos["model", "org/m"].gated = "manual"
    capsys.readouterr()
    assert world.prefetch() == 0
    assert "repositories: 2 there" in capsys.readouterr().out


def test_an_exit_code_alone_does_not_show_that_a_repository_is_there(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hf").write_text("#!/bin/sh\necho Downloaded\n")
    (tmp_path / "bin/hf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert world.prefetch() == 125
    assert "files differ from the hub's list" in capsys.readouterr().out
