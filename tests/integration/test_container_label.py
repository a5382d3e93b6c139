"""A label whose script calls `docker run`, on a real docker and on a real podman: CI's flags, this host's directories,
and the options that the installed docker has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.docker_argv import BOOLEANS, SHORT
from tests import fixtures as support
from tests.parts import dockerd
from tests.parts.engine import Engine, containers
from tests.parts.processes import kill

INLINE = """\
name: PR Test
on: pull_request
jobs:
  e2e-test-inline:
    if: contains(github.event.pull_request.labels.*.name, 'run-ci-inline')
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {matrix: {info: [{test_file: test_read.py, num_gpus: 4}]}}
    env:
      WANDB_API_KEY: ${{ secrets.WANDB_API_KEY }}
    steps:
      - uses: actions/checkout@v4
      - name: Execute
        shell: bash
        run: |
          docker run --pull=always --rm --privileged --network host --gpus all --ipc=host --shm-size=16g \\
            --ulimit memlock=-1 --memory=0 --memory-swap=0 \\
            -e WANDB_API_KEY -e TEST_FILE="${{ matrix.info.test_file }}" \\
            -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -v /mnt/ci/models:/root/models -w "$GITHUB_WORKSPACE" \\
            IMAGE bash -c 'source "tests/$TEST_FILE"'
"""
# Bash in files that are called .py: the test image has no Python, and CI does not care.
READ = """\
echo "step 0: {'model': '$(cat /root/models/name)', 'key': ${#WANDB_API_KEY}}"
touch written-by-container
"""
MODELS = 'the data\'s "own"\nplace'


@pytest.fixture
def container_person(tmp_path: Path, engine: Engine) -> Iterator[Any]:
    models = tmp_path / MODELS
    models.mkdir()
    (models / "name").write_text("Tiny")
    someone = support.Person(tmp_path / "home", tmp_path / "checkout", {"WANDB_API_KEY": "correct-horse-battery"})
    gpus = "--gpus all" if engine.runtime == "docker" else ""  # podman has none here
    someone.write(".github/workflows/pr-test.yml", INLINE.replace("IMAGE", dockerd.IMAGE).replace("--gpus all", gpus))
    someone.write("tests/test_read.py", READ)
    use_host(someone, engine, mounts={"/mnt/ci/models": str(models)})
    subprocess.run(["git", "init", "--quiet"], cwd=someone.checkout, check=True)
    yield someone
    kill(someone.processes())


def use_host(someone: Any, engine: Engine, **more: Any) -> None:
    host = {"kind": "local", "gpus": 8, "pull": "never", "runtime": engine.runtime, "env": dict(engine.environ), **more}
    someone.write_hosts(json.dumps({"hosts": {"box": host}}))


@pytest.mark.smoke
def test_cis_docker_run_reads_this_hosts_data_and_names_differences(container_person: Any, engine: Engine) -> None:
    said = container_person.ci_tasks("remote", "--host", "box", "inline", "--only", "read")
    assert said.code == 0, said.out + said.err
    (record,) = container_person.records()
    assert (record["status"], record["evidence"]["kind"]) == ("passed", "metrics")
    assert "step 0: {'model': 'Tiny', 'key': 21}" in container_person.logs()["read"]
    whats = {deviation["what"] for deviation in record["deviations"]}
    assert {"pull", "mount /mnt/ci/models", "code", "PYTEST_ADDOPTS"} <= whats
    (container,) = record["environment"]["containers"]
    assert container["image"].removeprefix("localhost/") == dockerd.IMAGE
    assert container["image_id"].startswith("sha256:")
    (call,) = json.loads(next(container_person.home.glob("runs/*/01/docker.json")).read_text())["calls"]
    assert "--pull=always" in call["ci"]
    assert call["here"][-3:] == call["ci"][-3:], "the command inside is CI's own"
    assert "correct-horse-battery" not in json.dumps([call, record]) + said.out
    assert not (container_person.checkout / "written-by-container").exists()
    assert not containers(engine)


# What a person has changed, of hosts.yaml and of the workflow, and what each engine says then.
PODMANS_GPUS = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
LACKING: list[tuple[dict[str, Any], tuple[str, str], dict[str, str]]] = [
    ({"mounts": {}}, ("", ""), {"": "mount source '/mnt/ci/models' does not exist on this host"}),
    ({}, (dockerd.IMAGE, "no-such:x"), {"docker": "No such image", "podman": "image not known"}),
    ({}, ("--shm-size", "--gpus all --shm-size"), {"podman": PODMANS_GPUS}),
    (
        {"pull": "missing"},
        (dockerd.IMAGE, "127.0.0.1:1/absent:x"),
        {"docker": "could not pull 127.0.0.1:1/absent:x: Error response from daemon: Get"},
    ),
    (
        {"env": {"DOCKER_HOST": "unix:///nothing.sock"}},
        ("", ""),
        {"docker": "docker (Cannot connect to the Docker daemon"},
    ),
]


def test_what_the_environment_lacks_is_blocked(container_person: Any, engine: Engine, tmp_path: Path) -> None:
    workflow = container_person.checkout / ".github/workflows/pr-test.yml"
    whole = workflow.read_text()
    for keys, edit, reasons in LACKING:
        if reason := reasons.get(engine.runtime, reasons.get("")):
            use_host(container_person, engine, **{"mounts": {"/mnt/ci/models": str(tmp_path / MODELS)}, **keys})
            workflow.write_text(whole.replace(*edit))
            said = container_person.ci_tasks("remote", "--host", "box", "inline", "--only", "read")
            assert said.code == 125, said.out + said.err
            assert reason in container_person.records()[0]["reason"]


def test_every_option_of_the_installed_docker_is_known_with_its_kind() -> None:
    if shutil.which("docker") is None:
        support.cannot("docker is not installed")
    text = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True, check=True).stdout
    shown = re.findall(r"^ {2,6}(?:-(\w), )?--([a-z0-9-]+)(?: ([a-z0-9-]+))?(?:  |$)", text, re.MULTILINE)
    assert len(shown) > 90
    assert {name for _, name, value in shown if not value} <= BOOLEANS
    assert {name for _, name, value in shown if value} & BOOLEANS == set()
    letters = {letter: name for letter, name, _ in shown if letter}
    assert letters.items() <= SHORT.items() and len(letters) > 13, "Debian's docker, an older one, has no -q"
