"""A run that is interrupted in every way a laptop knows: the status is right and nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
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


HOLD = """
import fcntl, sys, time
held = [open(f"{sys.argv[1]}/custom_gpu_lock_{number}.lock", "a") for number in range(6)]
for one in held:
    fcntl.flock(one, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_a_row_that_waits_for_gpus_says_who_holds_them(person: Any, tmp_path: Path) -> None:
    """The lock of a simulated GPU, held by somebody who is no run of ours."""
    locks = person.home / "simulated-gpus/sim"
    locks.mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(locks)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        client = person.start("remote", "--host", "sim", "ckpt", "--only", "async")
        (status,) = until(lambda: list(person.home.glob("runs/*/01/status.json")), "the run has begun")
        until(lambda: json.loads(status.read_text())["waiting"], "the run waits")
        assert client.stderr is not None
        said = next((line for line in client.stderr if "held by pid" in line), "")
    finally:
        holder.kill()
        holder.communicate()
    ends(client, 0)
    assert f"GPUs 0-5 held by pid {holder.pid}" in said
