"""Images are pulled on several hosts before their rows: from a registry that stalls, by a Docker daemon that hangs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts import registry
from tests.parts.dockerd import Daemon, image_tar
from tests.parts.processes import with_variable
from tests.parts.proxy import TcpProxy

WORKFLOW = """\
on: pull_request
jobs:
  e2e-test-boxed:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {matrix: {info: [{test_file: a.sh, num_gpus: 0}, {test_file: b.sh, num_gpus: 0}]}}
    steps:
      - uses: actions/checkout@v4
      - run: |
          docker run --rm --network host -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" IMAGE \\
            bash tests/${{ matrix.info.test_file }}
"""
IMPATIENT = """
from ci_tasks.executors import pull_images
pull_images.POLL_INTERVAL_S, pull_images.DAEMON_QUERY_TIMEOUT_S = 0.2, 2.0
pull_images.REPORT_INTERVAL_S, pull_images.DAEMON_TIMEOUT_S = 1.0, 6.0
"""


@pytest.fixture
def road() -> Iterator[TcpProxy]:
    """Leads to a registry that has an image, and lets nothing through."""
    with ExitStack() as stack:
        name, _ = stack.enter_context(registry.serving(image_tar()))
        road = stack.enter_context(TcpProxy(("127.0.0.1", int(name.partition("/")[0].rpartition(":")[2]))))
        road.blackhole()
        yield road


@pytest.fixture
def someone(tmp_path: Path, sshd: Any, docker_daemon: Daemon, road: TcpProxy) -> Iterator[Any]:
    """With two hosts, and an image that neither has."""
    someone = support.Person(tmp_path / "home", tmp_path / "checkout", dict(sshd.env), first=IMPATIENT)
    someone.write(".github/workflows/pr-test.yml", WORKFLOW.replace("IMAGE", f"127.0.0.1:{road.port}/slime"))
    for name in "ab":
        someone.write(f"tests/{name}.sh", "echo \"step 0: {'x': 1}\"\n")
    subprocess.run(["git", "init", "--quiet"], cwd=someone.checkout, check=True)
    host = {"kind": "ssh", "runtime": "docker", "pull": "missing", "gpus": 8, "env": docker_daemon.environ}
    hosts = {name: {**host, "address": sshd.start(name).name} for name in ("box1", "box2")}
    someone.write_hosts(json.dumps({"hosts": hosts}))
    yield someone
    docker_daemon.resume()
    road.restore()


def pulls(daemon: Daemon) -> list[int]:
    """The `docker pull` of any of the hosts that still runs."""
    return with_variable(f"DOCKER_HOST={daemon.host}", program="docker\0pull")


def read_until(client: Any, text: str) -> str:
    said = ""
    while text not in said:
        line = client.stdout.readline()
        assert line, f"it has ended without {text!r}:\n{said}{client.stderr.read()}"
        said += line
    return said


def test_a_registry_that_stalls_is_seen_as_a_pull_that_goes_on_until_it_ends(someone: Any, road: TcpProxy) -> None:
    client = someone.start("remote", "--host", "box1,box2", "boxed")
    read_until(client, f"pulling 127.0.0.1:{road.port}/slime for ")
    road.restore()
    out, err = client.communicate(timeout=120)
    assert client.returncode == 0, out + err
    assert [record["status"] for record in someone.records()] == ["passed"] * 2


def test_a_daemon_that_hangs_is_named_and_its_rows_are_blocked_in_time(someone: Any, docker_daemon: Daemon) -> None:
    client = someone.start("remote", "--host", "box1,box2", "boxed")
    read_until(client, "/slime for ")
    assert pulls(docker_daemon)
    with docker_daemon.hanging():
        read_until(client, "docker has not answered for ")
        out, err = client.communicate(timeout=120)
        assert not pulls(docker_daemon), "the hosts have ended them themselves"
    assert client.returncode == 125, out + err
    assert "box1 is not used: docker has not answered for " in out
    records = someone.records()
    assert {record["status"] for record in records} == {"blocked"}
    assert all("docker has not answered for " in record["reason"] for record in records)
