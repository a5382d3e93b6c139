"""A label over three real SSH hosts, each with a /dev/shm of its own: a host dies and comes back, the client is killed.

The sample's label runs without containers, since its tests need Python and the image that the tests make has none; what
runs in containers are rows of bash, on one Docker daemon for all three.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts import dockerd
from tests.parts import sshd as sshds
from tests.parts.processes import with_variable

until = support.until

BOXES = ["box1", "box2", "box3"]
# sshd in a mount namespace of its own. Its configuration, the last word, lies in the box's directory.
PRIVATE = """\
#!/bin/sh
for last; do :; done
shm=$(dirname "$last")/shm
mkdir -p -m 1777 "$shm"
exec unshare --mount --propagation private sh -c 'mount --bind "$0" /dev/shm && exec SSHD "$@"' "$shm" "$@"
"""


@pytest.fixture
def boxes(sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        support.cannot("a /dev/shm of its own for each host needs root")
    program = tmp_path / "private-sshd"
    program.write_text(PRIVATE.replace("SSHD", sshds.SSHD))
    program.chmod(0o755)
    monkeypatch.setattr(sshds, "SSHD", str(program))
    return [sshd.start(name) for name in BOXES]


def use(person: Any, sshd: Any, **settings: Any) -> None:
    """All three in a hosts.yaml, as the pool `farm`."""
    hosts = {name: {"kind": "ssh", "address": name, "gpus": 8, **settings} for name in BOXES}
    file = person.home.with_name("hosts.yaml")
    file.write_text(json.dumps({"hosts": hosts, "pools": {"farm": BOXES}}))
    person.env.update(sshd.env, CI_TASKS_HOSTS=str(file))


def left(box: Any) -> list[Path | int]:
    """What is still on the box of any run: files, processes, locks."""
    runs = box.home / ".ci-tasks/runs"
    processes = with_variable(f"CI_TASKS_RUN_DIR={runs}/")
    held = {line.split()[5].split(":")[2] for line in Path("/proc/locks").read_text().splitlines() if "FLOCK" in line}
    files = [*(box.directory / "shm").iterdir(), *box.home.glob(".ci-tasks/simulated-gpus/*")]
    return [*runs.rglob("*"), *processes, *(file for file in files if str(file.stat().st_ino) in held)]


def reads(client: Any, words: str) -> str:
    """What the client says until these words come; it says them, or the test runs into its timeout."""
    said = ""
    while words not in said:
        line = client.stdout.readline()
        assert line, f"it has ended without {words!r}:\n{said}{client.stderr.read()}"
        said += line
    return said


def test_a_host_dies_and_comes_back_the_client_is_killed_and_every_row_ends_once(
    person: Any, sshd: Any, boxes: list[Any]
) -> None:
    use(person, sshd, runtime="none", simulate=True)
    person.env["TINY_STEP_SECONDS"] = "0.3"
    client = person.start("remote", "--host", "farm", "image")
    victim = until(lambda: next((box for box in boxes if runs_a_row(box)), None), "a row runs")
    victim.stop()
    reads(client, f"the link to {victim.name} is down (")
    until(lambda: any(person.home.glob("runs/*/*/record.json")), "a row ends elsewhere")
    victim.restart()
    reads(client, f"the link to {victim.name} is back")
    client.kill()
    client.communicate()
    said = person.ci_tasks("remote", "--host", ",".join(BOXES), "image", "--resume")
    assert said.code == 0, said.out + said.err
    records, logs = person.records(), person.logs()
    assert len({record["row"] for record in records}) == len(records) == 9
    assert {record["status"] for record in records} == {"passed"}
    assert {record["host"] for record in records} == set(BOXES)
    assert "image: 9 passed" in said.out
    for record in records:
        log = logs[record["row"]]
        assert record["log"]["sha256"] == hashlib.sha256(log.encode()).hexdigest()
        assert log.count("[gpu_lock_exec] Acquired GPUs") == 1, "it ran once"
        assert "earlier" not in record
    assert [left(box) for box in boxes] == [[], [], []]


def runs_a_row(box: Any) -> bool:
    return any(b"rollout 0" in log.read_bytes() for log in box.home.glob(".ci-tasks/runs/*/*/log"))


WORKFLOW = """\
name: PR Test
on: pull_request
jobs:
  e2e-test-wide:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 2
    strategy: {matrix: {info: [{test_file: a.sh, num_gpus: 8}, {test_file: b.sh, num_gpus: 8},
                               {test_file: c.sh, num_gpus: 8}]}}
    steps:
      - uses: actions/checkout@v4
      - run: |
          docker run --pull=always --rm --network host --gpus all --ipc=host -v /mnt/ci/meeting:/meeting \\
            -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" IMAGE \\
            bash tests/${{ matrix.info.test_file }}
"""
# A row that ends when all three have begun: none of them may wait for another one's GPUs.
MEET = 'touch "/meeting/$0"; until [ "$(ls /meeting)" = "a\nb\nc" ]; do sleep 0.1; done; echo "step 0: {\'met\': 3}"\n'


def test_rows_that_take_a_whole_host_run_at_once_in_containers_on_three(
    tmp_path: Path, sshd: Any, boxes: list[Any], docker_host: str
) -> None:
    someone, meeting = support.Person(tmp_path / "home", tmp_path / "checkout"), tmp_path / "meeting"
    meeting.mkdir()
    someone.write(".github/workflows/pr-test.yml", WORKFLOW.replace("IMAGE", dockerd.IMAGE))
    for name in "abc":
        someone.write(f"tests/{name}.sh", MEET.replace("$0", name))
    subprocess.run(["git", "init", "--quiet"], cwd=someone.checkout, check=True)
    use(someone, sshd, pull="never", mounts={"/mnt/ci/meeting": str(meeting)}, env={"DOCKER_HOST": docker_host})
    said = someone.ci_tasks("remote", "--host", "farm", "wide")
    assert said.code == 0, said.out + said.err
    records = someone.records()
    assert [record["status"] for record in records] == ["passed"] * 3
    assert {record["host"] for record in records} == set(BOXES)
    assert all(record["environment"]["containers"] for record in records)
    assert dockerd.docker(docker_host, "ps", "--all", "--quiet", "--filter", "label=ci-tasks.run") == ""
    assert [left(box) for box in boxes] == [[], [], []]
