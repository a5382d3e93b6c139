"""A label over two simulated hosts of this machine, as a person runs it: one table, one journal, whoever is killed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures import until

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
