"""`hang` on a run that is stuck, over SSH and in a container: the rank and its line are named, and the run goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.hang import wait_for_look
from ci_tasks.agent.records import ProbeRules
from ci_tasks.features.hang.analysis import analyse_hang
from ci_tasks.records import Hang
from tests import fixtures as support
from tests.integration.container_box import Box
from tests.parts.dockerd import PYTHON_IMAGE, image_tar
from tests.parts.engine import Engine

HOSTS = "hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}}\n"
# Rank 0 waits for a queue that nobody fills, the others for rank 0, by sockets; the file says when that is so.
STUCK = """
import os, pathlib, queue, socket, subprocess, sys

def load_next_batch():
    pathlib.Path(MARK).touch()
    queue.Queue().get()

if "RANK" in os.environ:
    load_next_batch()
server = socket.create_server(("127.0.0.1", 0))
env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
subprocess.run([sys.executable, __file__], env=env)
"""


def test_the_stuck_frame_is_named_while_the_run_goes_on(person: Any, sshd: Any, tmp_path: Path) -> None:
    sshd.start("box")
    mark = tmp_path / "stuck"
    person.write_hosts(HOSTS)
    person.env.update(sshd.env)
    person.write("tests/test_tiny_ckpt.py", STUCK.replace("MARK", repr(str(mark))))
    said = person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--detach")
    assert said.code == 0, said.out + said.err
    support.until(mark.exists, "it is stuck")
    seen = person.ci_tasks("hang", "last", "--json")
    assert seen.code == 0, seen.out + seen.err
    (culprit,) = seen.json["culprits"]
    place = (culprit["rank"], culprit["function"], Path(culprit["file"]).name)
    assert place == (0, "load_next_batch", "test_tiny_ckpt.py")
    assert person.ci_tasks("cancel", "last").code == 0


# One rank waits for a queue, as the others would have it in a container: a program without a file.
IN_CONTAINER = """
import os, queue, subprocess, sys

def load_next_batch():
    queue.Queue().get()

if "RANK" in os.environ:
    print("stuck", flush=True)
    load_next_batch()
subprocess.run([sys.executable, "-c", os.environ["JOB"]], env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
"""


@pytest.fixture(scope="module")
def image() -> bytes:
    return image_tar(python=True)


@pytest.fixture
def box(tmp_path: Path, engine: Engine, image: bytes) -> Iterator[Box]:
    if not engine.call("images", "--quiet", PYTHON_IMAGE).strip():
        engine.call("import", "-", PYTHON_IMAGE, stdin=image)
    made = Box(tmp_path / "home", engine)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("engine", "flags"),
    [("docker_daemon", ("--pid=host",)), ("podman", ())],
    ids=["the pids of the host", "podman"],
    indirect=["engine"],
)
def test_in_a_container_its_own_processes_are_seen(box: Box, flags: tuple[str, ...]) -> None:
    """With no more rights than the job has."""
    inside = f'export JOB={shlex.quote(IN_CONTAINER)}; python3 -c "$JOB"'
    box.write(inside, *flags, image=PYTHON_IMAGE, probe=ProbeRules())
    box.start()
    support.until(lambda: "stuck" in box.log(), "it is stuck")
    facts = wait_for_look(box.run.path, "abc")
    hang: Hang = analyse_hang(facts)
    (culprit,) = hang.culprits
    assert (hang.kind, culprit.rank, culprit.function) == ("child", 0, "load_next_batch"), hang
    there = [process for process in facts.processes if process.place == box.name]
    programs = {process.argv[0].rpartition("/")[2] for process in there}
    assert programs <= {"docker-init", "podman-init", "bash", "python3"}, "and nobody else's"
    pythons = [process for process in there if process.python]
    assert [process.env.get("RANK") for process in pythons] == [None, "0"]
    assert all(process.stacks for process in pythons), facts.could_not
