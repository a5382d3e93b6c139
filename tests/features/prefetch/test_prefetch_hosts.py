"""`prefetch` over a real SSH server and in a real container, with the real `hf` and a hub of the test's own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests import fixtures as support
from tests.features.prefetch import hub_server as hubs
from tests.parts import dockerd, git

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
SECRET = "hf_never_seen_anywhere"
BIN = Path(sys.executable).parent  # with the real `hf`


RUN = "docker run --rm --gpus all --network host -v /mnt/ci:/root/models MORE IMAGE python t.py"
CONTAINER = WORKFLOW.replace("python tests/test_one.py", RUN)


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
    workflow = CONTAINER.replace("MORE", more).replace("IMAGE", dockerd.IMAGE)
    files = {".github/workflows/pr-test.yml": workflow, "tests/test_one.py": TEST}
    path = git.repository(tmp_path / "repo", files)
    with hubs.serving() as hub:
        hub.add("org/m", {"config.json": b"{}"}, gated="manual")
        hub.tokens = {SECRET: {"org/m"}}
        person = support.Person(
            tmp_path / "home", path, {"DOCKER_HOST": docker_host, "HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET}
        )
        host = {"kind": "local", "gpus": 8, "pull": "never", "mounts": {"/mnt/ci": str(tmp_path / "disk")}}
        person.write_hosts(json.dumps({"hosts": {"box": host}}))
        result = person.ci_tasks("prefetch", "short", "--host", "box")
    assert result.code == 0, result.out + result.err
    assert (tmp_path / "disk/m/config.json").read_bytes() == b"{}"
    assert "repositories: 1 fetched" in result.out and SECRET not in result.out + result.err
    assert not dockerd.docker(docker_host, "ps", "--all", "--quiet", "--filter", "label=ci-tasks.run")


def test_cancel_ends_the_download_and_the_same_command_brings_the_rest(person: Any, tmp_path: Path) -> None:
    disk, gate = tmp_path / "disk", threading.Event()
    person.write(".github/workflows/pr-test.yml", WORKFLOW)
    person.write("tests/test_one.py", TEST.replace("/root/models", str(disk)))
    command = ("prefetch", "short", "--host", "sim")
    with hubs.serving() as hub:
        person.env.update(HF_ENDPOINT=hub.url, PATH=f"{BIN}:{os.environ['PATH']}")
        hub.add("org/m", {"config.json": b"{}", "model.safetensors": WEIGHTS})
        hub.held["model.safetensors"] = gate
        client = person.start(*command)
        support.until(lambda: (disk / "m/config.json").exists() and list(disk.rglob("*.incomplete")), "it downloads")
        client.send_signal(signal.SIGINT)
        support.ends(client, 130)
        gate.set()
        assert not person.processes()
        result = person.ci_tasks(*command)
    assert result.code == 0, result.out + result.err
    assert "partly" not in result.out and "1 fetched" in result.out
    assert (disk / "m/model.safetensors").read_bytes() == WEIGHTS
