"""The story of `prefetch` on this machine, with a hub and a checkout of the test's own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks import config
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.flows import prefetching, stocktaking
from ci_tasks.flows.outputs import find_rows
from ci_tasks.flows.prefetching import Ask
from ci_tasks.flows.source import open_source, situation

if TYPE_CHECKING:
    from tests.hub.hub_server import Fault, Hub, serving
else:
    _name = "ci_tasks_tests_hub_server"
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parents[1] / "hub/hub_server.py")
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])
    from ci_tasks_tests_hub_server import Fault, Hub, serving

WORKFLOW = """
jobs:
  e2e-test-short:
    runs-on: self-hosted
    strategy: {matrix: {info: [
      {test_file: test_one.py, num_gpus: 1}, {test_file: test_two.py, num_gpus: 1}, {test_file: test_unit.py}]}}
    steps:
      - name: Execute
        run: |
          docker run --rm -v /mnt/ci/models:/root/models -v /mnt/ci/datasets:/root/datasets \\
            image:latest python tests/${{ matrix.info.test_file }}
"""
ONE = """
import slime.utils.external_utils.command_utils as U
def prepare():
    U.exec_command("hf download org/m --local-dir /root/models/m")
    U.hf_download_dataset("org/d")
if __name__ == "__main__":
    prepare()
"""
TWO = """
import slime.utils.external_utils.command_utils as U
if __name__ == "__main__":
    U.exec_command("hf download org/m --local-dir /root/models/m")
    U.exec_command("hf download org/elsewhere --local-dir /opt/m")
    U.convert_checkpoint(model_name="converted", megatron_model_type="t", num_gpus_per_node=1)
"""
WEIGHTS = b"w" * 100_000


class World:
    """A checkout, a hub and a host whose `/mnt/ci` is the directory `disk`."""

    def __init__(self, tmp_path: Path, hub: Hub, more: str = "") -> None:
        self.hub, self.disk = hub, tmp_path / "disk"
        self.repo = tmp_path / "repo"
        hub.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS})
        hub.add("org/d", {"train.jsonl": b"{}"}, kind="dataset")
        hub.add("org/elsewhere", {"a": b"a"})
        for name, text in {
            ".github/workflows/pr-test.yml": WORKFLOW,
            "tests/test_one.py": ONE,
            "tests/test_two.py": TWO,
            "tests/test_unit.py": "def test_it(): pass",
        }.items():
            path = self.repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"]):
            subprocess.run(["git", *words], cwd=self.repo, check=True)
        self.config = config.read(
            f"hosts: {{box: {{kind: local, mounts: {{/mnt/ci: {self.disk}}}{more}}}, other: {{kind: local}}}}\n"
        )
        self.said: list[str] = []
        self.told: list[Any] = []

    def prefetch(self, only: str | None = "one", **more: Any) -> int:
        ask = Ask("short", only, **{"host": "box", **more})
        source = open_source(str(self.repo))
        return prefetching.prefetch(
            source, self.config, ask, say=self.said.append, progress=lambda line, news: self.told.append(news)
        )

    def problems(self, only: str | None = None) -> dict[str, str]:
        source = open_source(str(self.repo))
        found = find_rows(source, "short", situation(source, secrets=()), None)
        rows = [row for row in found.rows if only is None or only in row.row]
        read = prefetching._reader(source)
        return prefetching.problems(source, self.config, found, rows, self.config.hosts["box"], read, self.said.append)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield World(tmp_path, hub)


def table(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_shows_everything_and_brings_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch(dry_run=True, as_json=True) == 0
    found = table(capsys)
    assert [(one["kind"], one["id"], one["state"], one["size"]) for one in found["repositories"]] == [
        ("model", "org/m", "missing", 100_002),
        ("dataset", "org/d", "missing", 2),
    ]
    assert found["repositories"][0]["directory"] == f"{world.disk}/models/m"
    assert found["repositories"][0]["where"] == ["tests/test_one.py:4"]
    assert found["mounts"][0]["needed"] == 100_004
    assert world.hub.contents() == [] and not world.disk.exists()


def test_it_brings_what_is_missing_where_the_test_will_look(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch() == 0
    assert (world.disk / "models/m/model.safetensors").read_bytes() == WEIGHTS
    assert (world.disk / "datasets/d/train.jsonl").read_bytes() == b"{}"
    assert "2 repositories: 2 fetched" in capsys.readouterr().out
    assert any(news.get("done") == news.get("total") == 100_002 for news in world.told)
    assert world.prefetch(as_json=True) == 0
    assert {one["state"] for one in table(capsys)["repositories"]} == {"there"}


def test_a_repository_of_several_rows_stands_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (world.disk / "models/converted").mkdir(parents=True)
    assert world.prefetch(None, as_json=True) == 0
    found = table(capsys)
    assert {one["id"]: (len(one["rows"]), one["state"]) for one in found["repositories"]} == {
        "org/m": (2, "fetched"),
        "org/d": (1, "fetched"),
        "org/elsewhere": (1, "not kept"),
    }
    assert found["expected"][0]["there"] is True


def test_rows_that_ask_for_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch("unit") == 0
    assert "no test of these rows asks a hub for anything" in capsys.readouterr().out
    assert world.hub.asked == []


def test_a_path_that_nobody_makes_is_missed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.prefetch("two", dry_run=True) == 125
    said = capsys.readouterr().out
    assert f"/root/models/converted ({world.disk}/models/converted) is missing" in said
    assert "tests/test_two.py:6" in said


def test_a_gate_that_is_closed_blocks_and_says_what_to_do(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.hub.repos["model", "org/m"].gated = "manual"
    assert world.prefetch() == 125
    said = capsys.readouterr().out
    assert "org/m is gated" in said and f"accept its terms at {world.hub.url}/org/m" in said
    assert "tests/test_one.py:4" in said
    assert (world.disk / "datasets/d/train.jsonl").exists(), "what can be had is brought all the same"


def test_a_token_opens_the_gate_and_stands_nowhere(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.hub.repos["model", "org/m"].gated = "manual"
    world.hub.tokens = {"hf_very_secret": {"org/m"}}
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    assert world.prefetch(as_json=True) == 0
    assert "hf_very_secret" not in capsys.readouterr().out + "".join(map(str, world.told + world.said))


def test_a_disk_too_small_for_all_of_them_gets_none(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stocktaking, "SPARE", 1 << 60)
    assert world.prefetch() == 125
    assert "disk full" in capsys.readouterr().out
    assert world.hub.contents() == []


def test_a_refusal_in_the_middle_is_told_with_its_own_word(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.hub.faults.append(Fault("/resolve/", status=403, times=99))
    assert world.prefetch() == 125
    assert "gated" in capsys.readouterr().out


def test_a_host_that_is_to_stay_offline(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    offline = World(tmp_path / "again", world.hub, ", env: {HF_HUB_OFFLINE: '1'}")
    assert offline.prefetch() == 125
    assert "HF_HUB_OFFLINE is set for box" in capsys.readouterr().out
    assert world.hub.asked == []


def test_what_the_source_does_not_say_is_listed_with_its_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    text = ONE.replace('U.hf_download_dataset("org/d")', "U.hf_download_dataset(input())")
    (world.repo / "tests/test_one.py").write_text(text)
    assert world.prefetch(dry_run=True) == 0
    said = capsys.readouterr().out
    assert "tests/test_one.py:5" in said and "input()" in said and "1 unresolved" in said


def test_names_that_do_not_exist(world: World) -> None:
    with pytest.raises(UnknownName):
        world.prefetch("none")
    with pytest.raises(UnknownName):
        world.prefetch(host="none")
    with pytest.raises(UsageError, match="for one host"):
        world.prefetch(host="box,other")


def test_before_a_run_everything_is_brought_and_rows_that_lack_something_are_named(world: World) -> None:
    world.hub.repos["dataset", "org/d"].gated = "auto"
    found = world.problems()
    assert len(found) == 2 and not any("unit" in name for name in found)
    assert "org/d (dataset) is gated" in next(text for name, text in found.items() if "one" in name)
    assert "/root/models/converted is missing" in next(text for name, text in found.items() if "two" in name)
    assert (world.disk / "models/m/config.json").exists()
    assert any(text.startswith("fetching org/m (100.0 kB) to ") for text in world.said)


def test_a_gate_is_no_harm_where_everything_is_behind_it_already(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.prefetch()
    world.hub.repos["model", "org/m"].gated = "manual"
    assert world.prefetch(dry_run=True) == 0


def test_without_the_hub_what_was_all_there_still_counts(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.prefetch()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("ci_tasks.hub.asking.TRIES", 1)
    assert world.prefetch() == 0
    assert "all that was there when it last could be is there" in capsys.readouterr().out
    (world.disk / "models/m/model.safetensors").unlink()
    assert world.prefetch() == 125
    assert "1 offline" in capsys.readouterr().out


def test_without_the_hub_nothing_is_known_of_what_was_never_brought(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("ci_tasks.hub.asking.TRIES", 1)
    assert world.prefetch() == 125
    said = capsys.readouterr().out
    assert "2 offline" in said and "cannot be reached" in said
