"""`hang` on a run that is stuck, here and on a host over SSH: the rank and its line are named, and the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support

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


@pytest.fixture(params=["sim", "box"])
def host(request: pytest.FixtureRequest, person: Any) -> str:
    if request.param == "box":
        sshd = request.getfixturevalue("sshd")
        sshd.start("box")
        person.env.update(sshd.env)
        file = person.home.with_name("hosts.yaml")
        file.write_text(HOSTS)
        person.env["CI_TASKS_HOSTS"] = str(file)
    return str(request.param)


def test_the_stuck_frame_is_named_while_the_run_goes_on(person: Any, host: str, tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    person.write("tests/test_tiny_ckpt.py", STUCK.replace("MARK", repr(str(mark))))
    said = person.ci_tasks("remote", "--host", host, "ckpt", "--only", "async", "--detach")
    assert said.code == 0, said.out + said.err
    support.until(mark.exists, "it is stuck")
    seen = person.ci_tasks("hang", "last", "--json")
    assert seen.code == 0, seen.out + seen.err
    (culprit,) = seen.json["culprits"]
    assert (culprit["rank"], culprit["function"], Path(culprit["file"]).name) == (
        0,
        "load_next_batch",
        "test_tiny_ckpt.py",
    )
    assert person.ci_tasks("cancel", "last").code == 0
