"""`prefetch` over a real SSH server and in a real container, with the real `hf` and a hub of the test's own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import config
from ci_tasks.features.prefetch.prefetch import prefetch_label
from ci_tasks.hosts.executors import open_executor
from ci_tasks.run.checkout_source import open_source
from tests import fixtures as support
from tests.features.prefetch import hub_server as hubs
from tests.parts import dockerd, git
from tests.parts.sshd import Sshd

WORKFLOW = """
jobs:
  e2e-test-short:
    runs-on: [self-hosted, cpu]
    strategy: {matrix: {info: [{test_file: test_one.py, num_gpus: 1}]}}
    steps:
      - {name: Execute, run: "python tests/test_one.py"}
"""
TEST = """
import subprocess
if __name__ == "__main__":
    subprocess.run(["hf", "download", "org/m", "--local-dir", "/root/models/m"], check=True)
"""
WEIGHTS = bytes(range(256)) * 50_000  # 12.8 MB; huggingface_hub resumes from multiples of 10 MiB
CHUNK = 10 << 20
SECRET = "hf_never_seen_anywhere"
BIN = Path(sys.executable).parent  # with the real `hf`


def checkout(path: Path, workflow: str = WORKFLOW, test: str = TEST) -> Path:
    return git.repository(path, {".github/workflows/pr-test.yml": workflow, "tests/test_one.py": test})


def test_a_gated_repository_is_downloaded_to_an_ssh_host_over_a_link_that_dies(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")  # the box has the one of this machine
    sshd_host = sshd.start("box")
    for name, value in {**sshd.env, "CI_TASKS_HOME": str(tmp_path / "home"), "HF_TOKEN": SECRET}.items():
        monkeypatch.setenv(name, value)
    hosts_config = config.read("hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 1, secrets: [HF_TOKEN]}}")
    source = open_source(str(checkout(tmp_path / "repo", test=TEST.replace("/root/models", str(tmp_path / "disk")))))
    with hubs.serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS}, gated="manual")
        hub.tokens = {SECRET: {"org/m"}}
        gate, back = threading.Event(), threading.Event()
        hub.faults += [
            hubs.Fault("model.safetensors", cut=CHUNK + 1000),
            hubs.Fault("model.safetensors", gate=gate),
        ]
        commands: list[str] = []

        def ranges() -> list[str]:
            return [
                request.range
                for request in hub.requests
                if "model.safetensors" in request.path and request.method == "GET"
            ]

        def die() -> None:
            support.until(lambda: len(ranges()) == 2, "the transfer waits in its middle")
            commands.extend(_commands())
            sshd_host.kill_children()
            support.until(back.is_set, "the link is back")
            gate.set()

        messages: list[str] = []

        def say(text: str) -> None:
            messages.append(text)
            if "is back" in text:
                back.set()

        dying = threading.Thread(target=die)
        dying.start()
        report = prefetch_label(source, hosts_config, "short", "box", open_executor, say)
        dying.join()
    assert not report.blocked and report.repositories[0].state == "fetched", report
    assert (tmp_path / "disk/m/model.safetensors").read_bytes() == WEIGHTS
    assert ranges() == ["", f"bytes={CHUNK}-"]
    assert any("fetching org/m" in message for message in messages), "the program's own last words are shown"
    assert any("hf download" in command for command in commands)
    assert SECRET not in "\n".join(commands)
    kept = [
        path.read_bytes()
        for path in (*Path(sshd_host.home).rglob("*"), *(tmp_path / "home").rglob("*"))
        if path.is_file()
    ]
    assert not any(SECRET.encode() in content for content in kept)
    assert not list(Path(sshd_host.home).glob(".ci-tasks/runs/*")), "nothing of the run is left on the box"


CONTAINER = """
jobs:
  e2e-test-short:
    runs-on: [self-hosted, cpu]
    strategy: {matrix: {info: [{test_file: test_one.py, num_gpus: 1}]}}
    steps:
      - {name: Execute, run: "docker run --rm --gpus all --network host -v /mnt/ci:/root/models MORE IMAGE python t.py"}
"""


def test_it_downloads_in_the_rows_image_into_the_rows_mounts(tmp_path: Path, docker_host: str) -> None:
    import huggingface_hub

    # The test image has bash and no Python: this machine's is mounted by the row's own `docker run`.
    (tmp_path / "bin").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "bin/hf").write_text(f'#!/bin/bash\nexec "{BIN}/hf" "$@"\n')
    (tmp_path / "bin/hf").chmod(0o755)
    library = str(Path(huggingface_hub.__file__).parents[1])
    libraries = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"]
    mounted = dict.fromkeys([sys.base_prefix, sys.prefix, library, *filter(os.path.isdir, libraries)])
    more = " ".join([*(f"-v '{path}:{path}:ro'" for path in mounted), f"-v '{tmp_path}/bin:/usr/local/bin'"])
    path = checkout(tmp_path / "repo", CONTAINER.replace("MORE", more).replace("IMAGE", dockerd.IMAGE))
    with hubs.serving() as hub:
        hub.add("org/m", {"config.json": b"{}"}, gated="manual")
        hub.tokens = {SECRET: {"org/m"}}
        person = support.Person(
            tmp_path / "home", path, {"DOCKER_HOST": docker_host, "HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET}
        )
        host = {"kind": "local", "gpus": 8, "pull": "never", "mounts": {"/mnt/ci": str(tmp_path / "disk")}}
        person.write_hosts(json.dumps({"hosts": {"box": host}}))
        result = person.ci_tasks("prefetch", "short", "--host", "box")
    assert result.code == 0, result.out + result.err + _logs(person.home)
    assert (tmp_path / "disk/m/config.json").read_bytes() == b"{}"
    assert "1 repository: 1 fetched" in result.out and SECRET not in result.out + result.err
    assert not dockerd.docker(docker_host, "ps", "--all", "--quiet", "--filter", "label=ci-tasks.run")


def _logs(home: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in home.rglob("log") if path.is_file())


def _commands() -> list[str]:
    """The command line of every process."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                processes.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return processes


TWO = """
jobs:
  e2e-test-short:
    runs-on: [self-hosted, cpu]
    strategy: {matrix: {info: [{test_file: test_open.py, num_gpus: 0}, {test_file: test_gated.py, num_gpus: 0}]}}
    steps:
      - {name: Execute, run: "MODELS=DISK python3 tests/${{ matrix.info.test_file }}"}
"""


def test_cancel_ends_the_download_and_the_same_command_brings_the_rest(person: Any, tmp_path: Path) -> None:
    disk, gate = tmp_path / "disk", threading.Event()
    person.write(".github/workflows/pr-test.yml", TWO.replace("test_gated", "test_open"))
    person.write("tests/test_open.py", TEST.replace("/root/models", str(disk)))
    command = ("prefetch", "short", "--host", "sim")
    with hubs.serving() as hub:
        person.env.update(HF_ENDPOINT=hub.url, PATH=f"{BIN}:{os.environ['PATH']}")
        hub.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS})
        hub.faults.append(hubs.Fault("model.safetensors", gate=gate, cut=0))
        client = person.start(*command)
        support.until(lambda: (disk / "m/config.json").exists() and list(disk.rglob("*.incomplete")), "it downloads")
        client.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=60)
        gate.set()
        assert client.returncode == 130, out + err
        assert not person.processes()
        result = person.ci_tasks(*command)
    assert result.code == 0, result.out + result.err
    assert "partly" not in result.out and "1 fetched" in result.out
    assert (disk / "m/model.safetensors").read_bytes() == WEIGHTS


def test_on_a_cluster_the_download_is_a_job(person: Any, cluster: Any, tmp_path: Path) -> None:
    person.write(".github/workflows/pr-test.yml", WORKFLOW)
    person.write("tests/test_one.py", TEST.replace("/root/models", f"{tmp_path}/disk"))
    cluster.person(person)
    with hubs.serving() as hub:
        hub.add("org/m", {"config.json": b"{}"})
        cluster.hosts(f"env: {{HF_ENDPOINT: '{hub.url}', PATH: '{BIN}:{os.environ['PATH']}'}}")
        result = person.ci_tasks("prefetch", "short", "--host", "cluster")
    assert result.code == 0, result.out + result.err + _logs(person.home)
    assert (tmp_path / "disk/m/config.json").exists() and "the login node's view" in result.out
    assert len(cluster.calls("sbatch")) == 1
    assert not cluster.left()
