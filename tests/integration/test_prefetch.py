"""`prefetch` to a box over a real SSH server, with a hub of the test's own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import config
from ci_tasks.flows import prefetching
from ci_tasks.flows.prefetching import Ask
from ci_tasks.flows.source import open_source

_name = "ci_tasks_tests_hub_server"
if _name not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parents[1] / "hub/hub_server.py")
    assert _spec is not None and _spec.loader is not None
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
hubs: Any = sys.modules[_name]
support = sys.modules["ci_tasks_tests_conftest"]
Sshd = Any  # a class of a module that is loaded by path

WORKFLOW = """
jobs:
  e2e-test-short:
    runs-on: self-hosted
    strategy: {matrix: {info: [{test_file: test_one.py, num_gpus: 1}]}}
    steps:
      - {name: Execute, run: "docker run --rm -v /mnt/ci/models:/root/models image:latest python tests/test_one.py"}
"""
TEST = """
import subprocess
if __name__ == "__main__":
    subprocess.run(["hf", "download", "org/m", "--local-dir", "/root/models/m"], check=True)
"""
WEIGHTS = bytes(range(256)) * 40_000  # 10 MB
SECRET = "hf_never_seen_anywhere"


def checkout(path: Path) -> Path:
    for name, text in {".github/workflows/pr-test.yml": WORKFLOW, "tests/test_one.py": TEST}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=path, check=True)
    return path


def test_a_gated_repository_comes_to_the_box_over_a_link_that_dies(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    box = sshd.start("box")
    for name, value in {**sshd.env, "CI_TASKS_HOME": str(tmp_path / "home"), "HF_TOKEN": SECRET}.items():
        monkeypatch.setenv(name, value)
    known = config.read(
        f"hosts: {{box: {{kind: ssh, address: box, mounts: {{/mnt/ci: {tmp_path}/disk}}, secrets: [HF_TOKEN]}}}}"
    )
    source = open_source(str(checkout(tmp_path / "repo")))
    with hubs.serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS}, gated="manual")
        hub.tokens = {SECRET: {"org/m"}}
        gate = threading.Event()
        weights = hubs.Fault("model.safetensors", gate=gate, cut=0)
        hub.faults += [hubs.Fault("model.safetensors", cut=4_000_000), weights]
        commands: list[str] = []

        def ranges() -> list[str]:
            return [one.range for one in hub.asked if "model.safetensors" in one.path]

        def die() -> None:
            support.until(lambda: len(ranges()) == 2, "the transfer waits in its middle")
            commands.extend(_commands())
            box.kill_children()
            support.until(lambda: len(ranges()) == 3, "the second link goes on")
            gate.set()

        dying = threading.Thread(target=die)
        dying.start()
        ask = Ask("short", host="box", as_json=True)
        code = prefetching.prefetch(source, known, ask, say=lambda text: None, progress=lambda line, news: None)
        dying.join()
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["repositories"][0]["state"] == "fetched"
    assert (tmp_path / "disk/models/m/model.safetensors").read_bytes() == WEIGHTS
    assert ranges() == ["", "bytes=4000000-", "bytes=4000000-"]
    assert SECRET not in "\n".join(commands)
    kept = [
        path.read_bytes() for path in (*Path(box.home).rglob("*"), *(tmp_path / "home").rglob("*")) if path.is_file()
    ]
    assert not any(SECRET.encode() in content for content in kept)


def _commands() -> list[str]:
    """The command line of every process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found


TWO = """
jobs:
  e2e-test-short:
    runs-on: self-hosted
    strategy: {matrix: {info: [{test_file: test_open.py, num_gpus: 0}, {test_file: test_gated.py, num_gpus: 0}]}}
    steps:
      - {name: Execute, run: "MODELS=DISK python3 tests/${{ matrix.info.test_file }}"}
"""


def test_before_a_run_what_is_asked_for_comes_and_a_row_that_would_lack_something_is_blocked(
    person: Any, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    person.write(".github/workflows/pr-test.yml", TWO.replace("DISK", str(disk)))
    for name in ("open", "gated"):
        text = TEST.replace("org/m", f"org/{name}").replace("/root/models/m", f"{disk}/{name}")
        # As careful tests do: what is there is not asked for again.
        text = text.replace("    subprocess.run(", f"    os.path.isdir({str(disk / name)!r}) or subprocess.run(")
        person.write(f"tests/test_{name}.py", f"import os\n{text}")
    with hubs.serving() as hub:
        person.env["HF_ENDPOINT"] = hub.url
        hub.add("org/open", {"config.json": b"{}"})
        hub.add("org/gated", {"config.json": b"{}"}, gated="manual")
        said = person.ci_tasks("remote", "--host", "sim", "short", "--prefetch")
    assert said.code == 125, said.out + said.err
    found = {record["row"]: (record["status"], record["reason"]) for record in person.records()}
    assert found["open"][0] == "passed", said.out
    assert found["gated"][0] == "blocked"
    assert "org/gated" in found["gated"][1]
    assert (disk / "open/config.json").read_bytes() == b"{}"
