"""One fault at a time in a run on a box: the status is right, the log is the job's, nothing is left.

`bench/faults.py` does the same at random, in every phase.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts import proxy
from tests.parts.processes import command_lines, with_variable

until = support.until

SIM = "hosts: {box: {kind: ssh, address: far, runtime: none, gpus: 8, simulate: true, workspace: WORKSPACE}}\n"
RUN = ("remote", "--host", "box", "ckpt", "--only", "async")
LINES = """\
import time
for n in range(30):
    print(f"line {n} of the job", flush=True)
    time.sleep(0.05)
print("step 0: {'x': 1}", flush=True)
"""
WRITTEN = "".join(f"line {n} of the job\n" for n in range(30)) + "step 0: {'x': 1}\n"


class Far:
    """A person, a box, and the road between them."""

    def __init__(self, person: Any, sshd: Any, directory: Path) -> None:
        self.person, self.directory = person, directory
        self.box = sshd.start("box")
        self.road = proxy.TcpProxy((self.box.ip, self.box.port))
        sshd.alias("far", self.box, HostName="127.0.0.1", Port=str(self.road.port))
        person.env.update(sshd.env)
        self.there = directory / "there"
        self.there.mkdir()
        self.host(SIM)

    def host(self, text: str) -> None:
        file = self.directory / "hosts.yaml"
        file.write_text(text.replace("WORKSPACE", str(self.there)))
        self.person.env["CI_TASKS_HOSTS"] = str(file)

    def job(self, text: str) -> None:
        self.person.write("tests/test_tiny_ckpt.py", text)

    def start(self, *words: str) -> Any:
        return self.person.start(*(words or RUN))

    def log_there(self) -> str:
        return "".join(path.read_text() for path in self.there.glob("runs/*/01/log"))

    def status_there(self) -> dict[str, Any]:
        found = [json.loads(path.read_text()) for path in self.there.glob("runs/*/01/status.json")]
        return found[0] if found else {}

    def agent_pid(self) -> int:
        return int(self.status_there()["pid"])

    def runs(self, count: int = 5) -> None:
        until(lambda: f"line {count} of" in self.log_there() or "begun" in self.log_there(), "the job runs")

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.person.ci_tasks("runs", "--json").json[0]
        return found

    def log(self) -> bytes:
        return bytes(next(self.person.home.glob("runs/*/01/log")).read_bytes())

    def left(self) -> list[str]:
        """Of any run, on the box."""
        found = [str(path) for path in self.there.glob("runs/*/*")]
        return found + command_lines(with_variable(f"CI_TASKS_RUN_DIR={self.there}/"))


@pytest.fixture
def far(person: Any, sshd: Any, tmp_path: Path) -> Iterator[Far]:
    made = Far(person, sshd, tmp_path)
    yield made
    made.road.close()


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], Path]]:
    """Make a directory a disk of its own; returns what fills it. Removing that makes room again."""
    mounted: list[Path] = []

    def make(directory: Path) -> Path:
        directory.mkdir(exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            support.cannot(f"a small disk needs root: {done.stderr.strip()}")
        mounted.append(directory)
        return directory / "filler"

    yield make
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(b"x" * 4096)
        except OSError:
            pass


def ends(client: Any, code: int) -> str:
    out, err = client.communicate(timeout=60)
    assert client.returncode == code, out + err
    return str(out + err)


def test_a_link_that_is_silent_is_noticed_and_nothing_is_lost(far: Far) -> None:
    # The host beats every two seconds.
    far.person.first = "from ci_tasks.executors.remote import channel; channel.SILENCE_TIMEOUT_S = 5.0"
    far.job(LINES)
    client = far.start()
    far.runs()
    far.road.blackhole()
    said = ""
    while "is down (" not in said:  # the client says it, or never ends
        said += client.stdout.readline()
    far.road.restore()
    said += ends(client, 0)
    assert "is back after" in said
    assert WRITTEN in far.log().decode()
    assert far.record()["log"]["sha256"] == hashlib.sha256(far.log()).hexdigest()
    assert far.left() == []


@pytest.mark.parametrize(("words", "code"), [(["attach", "last"], 125), (["logs", "last", "--follow"], 0)])
def test_a_client_that_is_killed_while_it_sends_has_begun_nothing_and_clean_finds_nothing(
    far: Far, words: list[str], code: int
) -> None:
    # More than the window of an SSH channel: the rest has not even left.
    far.person.write("noise", os.urandom(5 << 20).hex())
    client = far.start()
    until(lambda: far.road.carried[0] > 1 << 20, "the code is being sent")
    far.road.blackhole()
    client.kill()
    client.communicate()
    far.road.restore()
    assert far.person.ci_tasks(*words).code == code
    assert (far.record()["status"], "never began" in far.record()["reason"]) == ("lost", True)
    assert far.left() == []
    assert far.person.ci_tasks("clean", "--host", "box").code == 0


@pytest.mark.parametrize("more", [[], ["--detach"]], ids=["", "detached"])
def test_ctrl_c_while_the_code_is_sent_is_not_kept_waiting(far: Far, more: list[str]) -> None:
    far.person.write("noise", os.urandom(5 << 20).hex())
    client = far.start(*RUN, *more)
    until(lambda: far.road.carried[0] > 1 << 20, "the code is being sent")
    far.road.blackhole()
    client.send_signal(signal.SIGINT)
    ends(client, 130)
    assert far.record()["status"] == "cancelled"
    far.road.restore()
    assert far.left() == []


def test_a_reader_that_goes_away_ends_the_run_there(far: Far) -> None:
    far.job(LINES.replace("30", "3000"))
    client = far.start()
    far.runs()
    client.stdout.close()
    client.stderr.close()
    client.wait(60)
    assert client.returncode == 141
    assert far.left() == []


def test_a_full_disk_there_is_blocked_and_leaves_nothing(far: Far, small_disk: Callable[[Path], Path]) -> None:
    filler = small_disk(far.there)
    far.job(LINES.replace("of the job", "of the job" + 5000 * "."))  # a page of a full disk may have room for a line
    client = far.start()
    far.runs()
    fill(filler)
    ends(client, 125)
    filler.unlink()
    assert "No space left on device" in far.record()["reason"]
    assert far.left() == []


def test_a_disk_there_that_became_read_only_blocks_the_next_run(far: Far, small_disk: Callable[[Path], Path]) -> None:
    """The agent is there already, so that nothing of the connection itself has to be written."""
    small_disk(far.there)
    far.job(LINES)
    ends(far.start(), 0)
    subprocess.run(["mount", "-o", "remount,ro", str(far.there)], check=True)
    ends(far.start(), 125)
    assert far.record()["status"] == "blocked"
    assert "Read-only file system" in far.record()["reason"]
    assert far.left() == []


# -- in a container --------------------------------------------------------------------------------------------------
