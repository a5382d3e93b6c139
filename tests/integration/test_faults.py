"""A run that is interrupted in every way a laptop knows: the status is right and nothing is left."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.fixtures import ends, until

ENDLESS = """\
import subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "600"])
print("here", flush=True)
time.sleep(600)
"""


@pytest.fixture
def endless(person: Any) -> Any:
    """The sample with a row that never ends and starts a process of another session."""
    person.edit("tests/test_tiny_ppo.py", 'if __name__ == "__main__":', ENDLESS + "if True:")
    return person


def started(person: Any, rows: str = "ppo,dense") -> Any:
    """The wider row begins first, and with one row at once the other waits."""
    client = person.start("remote", "--host", "sim", "megatron", "--only", rows, "--jobs", "1")
    until(lambda: any(b"here" in log.read_bytes() for log in person.home.glob("runs/*/*/log")), "the row runs")
    return client


def test_ctrl_c_cancels_what_runs_and_what_waits(endless: Any) -> None:
    client = started(endless)
    client.send_signal(signal.SIGINT)
    ends(client, 130)
    assert {record["status"] for record in endless.records()} == {"cancelled"}
    assert not endless.processes()
    assert not list(endless.home.glob("runs/*/*/workspace"))


def test_a_second_ctrl_c_does_not_wait(endless: Any) -> None:
    endless.edit(
        "tests/test_tiny_ppo.py",
        "import subprocess",
        "import signal\nsignal.signal(15, signal.SIG_IGN)\nimport subprocess",
    )
    client = started(endless)
    client.send_signal(signal.SIGINT)
    until(lambda: "cancelling" in client.stdout.readline(), "the first is noticed")
    client.send_signal(signal.SIGINT)
    ends(client, 130)
    assert not endless.processes()
    (events,) = endless.home.glob("runs/*/*/events.jsonl")
    assert {record["status"] for record in endless.records()} == {"cancelled"}
    assert '"killed"' not in events.read_text(), "the second ^C killed it, not the agent after the grace period"


# -- a client that was killed, over two simulated hosts: one table, one journal ----------------------------------------

HOSTS = """\
hosts:
  one: {kind: local, runtime: none, gpus: 8, simulate: true}
  two: {kind: local, runtime: none, gpus: 4, simulate: true}
pools: {both: [one, two]}
"""
ROWS = {"tiny_dense_grpo": 1, "tiny_ppo": 2, "tiny_moe_r3": 8, "tiny_ckpt[async-save]": 4}
ONLY = "tiny_dense,tiny_ppo,tiny_moe,async"


@pytest.fixture
def fleet(person: Any) -> Any:
    """Their hosts.yaml names two hosts and a pool of them."""
    person.write_hosts(HOSTS)
    return person


def test_a_command_whose_client_was_killed_is_resumed_and_what_failed_runs_again(fleet: Any) -> None:
    fleet.edit("tests/test_tiny_ppo.py", "\n\n", "\n\nassert 1 == 2, 'never'\n\n")
    client = fleet.start("remote", "--host", "both", "image", "--only", ONLY)
    until(lambda: any(fleet.home.glob("runs/*/*/record.json")), "a row has ended")
    client.kill()
    client.communicate()
    before = {path: path.read_text() for path in fleet.home.glob("runs/*/*/record.json")}
    assert len(before) < len(ROWS)
    said = fleet.ci_tasks("remote", "--host", "one,two", "image", "--resume")
    assert said.code == 1, said.out + said.err
    assert "resuming " in said.out
    records = fleet.records()
    assert [(record["row"], record["gpus"]) for record in records] == list(ROWS.items())
    assert {path: path.read_text() for path in before} == before, "what had ended keeps its record"
    assert {record["row"]: record["status"] for record in records if record["status"] != "passed"} == {
        "tiny_ppo": "failed"
    }
    assert {record["host"] for record in records} == {"one", "two"}
    assert "image: 3 passed, 1 failed" in said.out
    for row, log in fleet.logs().items():
        assert ("never" in log) == (row == "tiny_ppo")
        assert log.count("[gpu_lock_exec] Acquired GPUs") == 1, "it ran once"
    assert not fleet.processes()
    assert not list(fleet.home.glob("runs/*/*/workspace"))
    _only_what_failed(fleet)


def _only_what_failed(fleet: Any) -> None:
    fleet.git("checkout", "--quiet", "--", "tests/test_tiny_ppo.py")
    said = fleet.ci_tasks("remote", "--host", "both", "image", "--last-failed")
    assert said.code == 0, said.out + said.err
    assert [(record["row"], record["status"]) for record in fleet.records()] == [("tiny_ppo", "passed")]
    said = fleet.ci_tasks("remote", "--host", "both", "image", "--last-failed")
    assert (said.code, "no row failed" in said.err) == (2, True), said.out + said.err
    said = fleet.ci_tasks("remote", "--host", "both", "image", "--resume")
    assert (said.code, "no command of label image" in said.err) == (2, True), said.out + said.err
