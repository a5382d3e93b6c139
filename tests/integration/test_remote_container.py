"""A container on a box over SSH: real sshd, a real docker and a real podman, CI's own `docker run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts import dockerd
from tests.parts.engine import Engine
from tests.parts.processes import with_variable

WORKFLOW = """\
name: PR Test
on: pull_request
jobs:
  e2e-test-far:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {matrix: {info: [{test_file: test_job.py, num_gpus: 2}]}}
    env:
      WANDB_API_KEY: ${{ secrets.WANDB_API_KEY }}
    steps:
      - uses: actions/checkout@v4
      - run: |
          docker run --pull=always --rm --privileged --network host --gpus all --ipc=host \\
            -e WANDB_API_KEY -e WORD="a word" -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" \\
            -v /mnt/ci/models:/root/models IMAGE bash -c 'source tests/${{ matrix.info.test_file }}'
"""
JOB = """\
echo "step 0: {'word': '$WORD', 'model': '$(cat /root/models/name)', 'key': ${#WANDB_API_KEY}}"
mkdir -p /tmp/ray/session_1/logs && echo 'raylet died' > /tmp/ray/session_1/logs/raylet.err
ln -s session_1 /tmp/ray/session_latest
touch written-by-root && mkdir -p deep && touch deep/er && chmod 000 deep
"""


@pytest.fixture
def far_person(tmp_path: Path, sshd: Any, engine: Engine) -> Any:
    box = sshd.start("box")
    checkout, models = tmp_path / "checkout", tmp_path / "models"
    models.mkdir()
    (models / "name").write_text("Tiny")
    someone: Any = support.Person(tmp_path / "home", checkout, {**sshd.env, "WANDB_API_KEY": "correct-horse-battery"})
    gpus = "--gpus all" if engine.runtime == "docker" else ""  # podman has none here
    someone.write(".github/workflows/pr-test.yml", WORKFLOW.replace("IMAGE", dockerd.IMAGE).replace("--gpus all", gpus))
    someone.write("tests/test_job.py", JOB)
    host = {
        "kind": "ssh",
        "address": "box",
        "gpus": 8,
        "pull": "never",
        "mounts": {"/mnt/ci/models": str(models)},
        "runtime": engine.runtime,
        "env": dict(engine.environ),
    }
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": {"box": host}}))
    someone.env["CI_TASKS_HOSTS"] = str(tmp_path / "hosts.yaml")
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    someone.box = box
    return someone


def containers(engine: Engine) -> str:
    return engine.call("ps", "--all", "--quiet", "--filter", "label=ci-tasks.run")


def left(person: Any) -> list[Path]:
    return list((person.box.home / ".ci-tasks/runs").rglob("*"))


def test_a_kept_container_is_entered_with_the_rows_environment_and_directory(far_person: Any, engine: Engine) -> None:
    far_person.write("tests/test_job.py", "touch /tmp/trace; exit 3\n")
    assert far_person.ci_tasks("remote", "--host", "box", "far", "--keep").code == 1
    (record,) = far_person.records()
    typed = 'echo "$WORD at $PWD"; ls /tmp/trace tests; exit 5\n'
    entered = far_person.start("shell", record["id"], stdin=typed)
    out, err = entered.communicate(timeout=60)
    assert entered.returncode == 5, out + err
    assert "a word at " in out
    assert "/tmp/trace" in out
    assert "test_job.py" in out
    assert containers(engine)
    said = far_person.ci_tasks("clean", "--host", "box", "--all")
    assert said.code == 0, said.out + said.err
    assert not containers(engine)
    assert left(far_person) == []


def test_a_job_whose_docker_client_died_is_not_left_running(far_person: Any, engine: Engine) -> None:
    far_person.write("tests/test_job.py", "echo here; sleep 600\n")
    client = far_person.start("remote", "--host", "box", "far")
    support.until(lambda: containers(engine), "the container runs")
    support.until(lambda: b"here" in b"".join(log.read_bytes() for log in far_person.home.glob("runs/*/01/log")), "it")
    mark = f"CI_TASKS_RUN_DIR={far_person.box.home}/"
    clients = with_variable(mark, program=f"{engine.runtime}\0run")
    assert clients
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
    out, err = client.communicate(timeout=60)
    assert client.returncode == 1, out + err
    assert not containers(engine)
    assert left(far_person) == []
