"""`remote` on a box over real SSH: this very tree, its output as it is written, its result here, nothing left there.

One fault at a time; `bench/faults.py` has them at random, in every phase."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.fixtures import ends, until
from tests.parts import dockerd, proxy
from tests.parts.cases import named
from tests.parts.engine import Engine, containers
from tests.parts.processes import command_lines, with_variable

SIM = "hosts: {box: {kind: ssh, address: far, runtime: none, gpus: 8, simulate: true, workspace: WORKSPACE}}\n"
RUN = ("remote", "--host", "box", "ckpt", "--only", "async")
ENDLESS = "import time\nprint('line 9 of', flush=True)\ntime.sleep(600)\n"
LINES = """\
import time
for n in range(30):
    print(f"line {n} of the job", flush=True)
    time.sleep(0.05)
print("step 0: {'x': 1}", flush=True)
"""
WRITTEN = "".join(f"line {n} of the job\n" for n in range(30)) + "step 0: {'x': 1}\n"


class Far:
    """A person in the sample's checkout, a box, and the road between them."""

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
        self.person.write_hosts(text.replace("WORKSPACE", str(self.there)))

    def job(self, text: str) -> None:
        self.person.write("tests/test_tiny_ckpt.py", text)

    def run(self, *more: str, code: int = 0) -> Any:
        said = self.person.ci_tasks(*RUN, *more)
        assert said.code == code, said.out + said.err
        return said

    def start(self, *words: str) -> Any:
        return self.person.start(*(words or RUN))

    def runs(self) -> None:
        logs = "runs/*/01/log"
        until(lambda: any("line 9 of" in path.read_text() for path in self.there.glob(logs)), "the job runs")

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.person.ci_tasks("runs", "--json").json[0]
        return found

    def log(self) -> bytes:
        return bytes(sorted(self.person.home.glob("runs/*/01/log"))[-1].read_bytes())

    def is_home(self) -> None:
        assert (self.record()["status"], WRITTEN in self.log().decode()) == ("passed", True)
        assert self.record()["log"] == {"bytes": len(self.log()), "sha256": hashlib.sha256(self.log()).hexdigest()}
        assert self.left() == []

    def left(self) -> list[str]:
        """Of any run, on the box."""
        found = [str(path) for path in self.there.glob("runs/*/*")]
        return found + command_lines(with_variable(f"CI_TASKS_RUN_DIR={self.there}/"))


@pytest.fixture
def far(person: Any, sshd: Any, tmp_path: Path) -> Iterator[Far]:
    made = Far(person, sshd, tmp_path)
    yield made
    made.road.close()


@pytest.mark.smoke
def test_a_label_runs_on_the_box_on_exactly_this_tree(far: Far) -> None:
    far.job(LINES)
    far.person.write("notes.txt", "untracked\n")
    said = far.person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async,gpu-load-optimizer-gpu")
    assert said.code == 0, said.out + said.err
    records = far.person.records()
    assert [(record["status"], record["host"]) for record in records] == [("passed", "box")] * 2
    assert set(records[0]["checkout"]["dirty"]) == {"notes.txt", "tests/test_tiny_ckpt.py"}
    assert all(WRITTEN in log for log in far.person.logs().values())
    assert far.left() == []
    assert far.person.git("status", "--porcelain").split() == ["M", "tests/test_tiny_ckpt.py", "??", "notes.txt"]


def test_a_second_run_sends_what_changed_and_to_a_host_that_forgot_everything_all_of_it(far: Far) -> None:
    def stored() -> int:
        return sum(path.stat().st_size for path in (far.there / "store.git").rglob("*.pack"))

    far.person.write("large.bin", os.urandom(3 << 20).hex())
    far.job(LINES)
    assert WRITTEN in far.run().out, "a single row's log is shown as it comes"
    before = stored()
    far.job("print('once more')\n" + LINES)
    far.run()
    assert len(list((far.there / "workspaces").iterdir())) == 1, "the second run used that of the first"
    assert 0 < stored() - before < 200_000
    assert "once more" in far.log().decode()
    shutil.rmtree(far.there)
    assert "once more" in far.run().out


def test_a_colleague_follows_and_cancels_a_run_by_its_name_on_the_host(far: Far, tmp_path: Path) -> None:
    far.job(ENDLESS)
    far.run("--detach")
    listed = far.record()
    assert "stays, it runs" in far.person.ci_tasks("clean", "--host", "box", "--all").out
    colleague = support.Person(tmp_path / "colleague", far.person.checkout, dict(far.person.env))
    said = colleague.ci_tasks("cancel", listed["id"], "--host", "box")
    assert said.code == 0, said.out + said.err
    (here,) = colleague.home.glob("runs/*/01")
    assert here.parent.name.startswith(listed["id"].removesuffix(".01"))
    assert f"{here.parent.name}.01" in said.out, "as it is called on the host, and here"
    assert [record["status"] for record in colleague.records()] == ["cancelled"]
    assert "its files were removed" not in colleague.ci_tasks("runs").out
    # The run is still whole for the one who began it.
    assert "stays, its results are not fetched: `fetch` it first" in far.person.ci_tasks("clean", "--host", "box").out
    assert "cancelled" in far.person.ci_tasks("fetch", "last").out
    assert far.left() == []
    said = far.person.ci_tasks("attach", "no-such-run", "--host", "box")
    assert (said.code, "unknown run 'no-such-run'" in said.err) == (2, True)


def test_a_killed_client_loses_nothing(far: Far) -> None:
    far.job(LINES)
    client = far.start()
    far.runs()
    client.kill()
    client.communicate()
    said = far.person.ci_tasks("logs", "last", "--follow")
    assert said.code == 0, said.err
    assert said.out == far.log().decode()
    far.is_home()


FAULTS: dict[str, Callable[[Far], object]] = {
    "every connection dies": lambda far: far.box.kill_children(),
    "sshd is restarted": lambda far: (far.box.stop(), far.box.restart()),
    "the link is silent": lambda far: far.road.blackhole(),
}


@named("fault", FAULTS)
def test_a_link_that_dies_or_is_silent_is_made_again(far: Far, fault: Callable[[Far], object]) -> None:
    # The host beats every two seconds.
    far.person.first = "from ci_tasks.hosts import connection; connection.SILENCE_TIMEOUT_S = 5.0"
    far.job(LINES)
    client, said = far.start(), ""
    far.runs()
    fault(far)
    while "is down" not in said:  # the client says it, or never ends
        said += client.stdout.readline()
    far.road.restore()
    assert "is back" in said + ends(client, 0)
    far.is_home()


def test_a_plan_for_a_host_runs_by_hand_there_and_clean_removes_it(far: Far) -> None:
    far.job(LINES)
    plan = ("plan", "ckpt", "--only", "async", "--host", "box")
    assert (far.person.ci_tasks(*plan, "--json").code, list(far.there.glob("runs/*"))) == (0, [])  # it only tells
    said = far.person.ci_tasks(*plan)
    command = said.err.partition("by hand on box: ")[2].strip()
    assert command.startswith(f"bash {far.there}/runs/"), said.err
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=far.directory)
    assert (done.returncode, WRITTEN in done.stdout) == (0, True), done.stdout + done.stderr
    assert (far.person.ci_tasks("clean", "--host", "box", "--all").code, far.left()) == (0, [])
    far.box.stop()  # a plan for a host that is away is shown all the same
    said = far.person.ci_tasks(*plan)
    assert (said.code, "no script to run by hand on box" in said.err) == (0, True), said.out + said.err


def test_a_disk_there_that_is_full_or_read_only_blocks_and_leaves_nothing(far: Far) -> None:
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(far.there)]
    if (done := subprocess.run(words, capture_output=True, text=True, check=False)).returncode:
        support.cannot(f"a small disk needs root: {done.stderr.strip()}")
    try:
        far.job(LINES.replace("of the job", "of the job" + 5000 * "."))  # a full disk's page may have room for a line
        client = far.start()
        far.runs()
        subprocess.run(["dd", "if=/dev/zero", f"of={far.there}/filler"], capture_output=True, check=False)
        ends(client, 125)
        (far.there / "filler").unlink()
        assert "No space left on device" in far.record()["reason"]
        subprocess.run(["mount", "-o", "remount,ro", str(far.there)], check=True)
        far.run(code=125)  # the agent is there already: nothing of the connection itself has to be written
        assert far.record()["status"] == "blocked"
        assert "Read-only file system" in far.record()["reason"]
        assert far.left() == []
    finally:
        subprocess.run(["umount", "--lazy", str(far.there)], check=True)


def test_a_failed_run_is_kept_entered_and_cleaned(far: Far) -> None:
    """The workspace of one that passed before stays for later ones until `clean --all`, and is not the kept one."""
    far.run()
    far.job("import sys\nprint('bad luck', flush=True)\nsys.exit(3)\n")
    far.run("--keep", code=1)
    (id,) = [record["id"] for record in far.person.records() if record["status"] == "failed"]
    entered = far.person.start("shell", id, stdin='echo "at $PWD"; ls tests; echo "job $GITHUB_JOB"; exit 7\n')
    assert "test_tiny_ckpt.py" in ends(entered, 7)
    assert f"{id}: stays, it was kept" in far.person.ci_tasks("clean", "--host", "box").out
    assert far.left()
    said = far.person.ci_tasks("clean", "--host", "box", "--all")
    assert (said.code, f"{id}: removed" in said.out) == (0, True), said.out + said.err
    assert not far.there.exists(), said.out
    said = far.person.ci_tasks("shell", id)
    assert (said.code, "--keep" in said.err) == (2, True)


def test_two_overlays_run_on_the_box_as_they_are_here(far: Far, tmp_path: Path) -> None:
    """Of the sample's own package, which its install step makes editable, and of a part of a namespace."""
    for name, module in {"first": "tiny_slime", "second": "src/spread/part"}.items():
        directory = tmp_path / name / module
        directory.mkdir(parents=True)
        (directory / "__init__.py").write_text(f"V = 'the overlay {name}'\n")
    far.job("import tiny_slime, spread.part\nprint('step 0:', {'x': 1})\nprint(tiny_slime.V, spread.part.V)\n")
    overlays = ("--with", f"tiny-slime={tmp_path}/first", "--with", f"spread={tmp_path}/second")
    far.run(*overlays)
    (record,) = far.person.records()
    why = {item["what"]: item["why"] for item in record["deviations"]}
    assert "shown: the one process" in why["overlay tiny-slime"] and "shown: the one process" in why["overlay spread"]
    first, second = record["checkout"]["overlays"]
    assert (first["modules"], second["modules"]) == (["tiny_slime"], ["spread.part"])
    assert "the overlay first the overlay second" in far.log().decode()
    assert far.left() == []


# -- in a container --------------------------------------------------------------------------------------------------

BOXED = """\
on: pull_request
jobs:
  e2e-test-boxed:
    runs-on: [self-hosted, cpu]
    steps:
      - uses: actions/checkout@v4
      - run: docker run --rm --network host -e WORD="a word" -v "$PWD:$PWD" -w "$PWD" IMAGE bash job.sh
"""


@pytest.fixture
def boxed(far: Far, engine: Engine) -> Iterator[Far]:
    """Its files are root's, and one directory nobody may enter."""
    far.person.write(".github/workflows/pr-test.yml", BOXED.replace("IMAGE", dockerd.IMAGE))
    host = {"kind": "ssh", "address": "far", "pull": "never", "runtime": engine.runtime, "workspace": str(far.there)}
    far.host(json.dumps({"hosts": {"box": {**host, "env": dict(engine.environ)}}}))
    yield far
    assert not containers(engine)
    assert far.left() == []


def test_a_kept_container_is_entered_with_the_rows_environment_and_directory(boxed: Far, engine: Engine) -> None:
    boxed.person.write("job.sh", "touch /tmp/trace; mkdir -p deep; touch deep/er; chmod 000 deep; exit 3\n")
    said = boxed.person.ci_tasks("remote", "--host", "box", "boxed", "--keep")
    assert said.code == 1, said.out + said.err
    typed = 'echo "$WORD at $PWD"; ls /tmp/trace job.sh; exit 5\n'
    entered = ends(boxed.person.start("shell", boxed.record()["id"], stdin=typed), 5)
    assert "a word at " in entered and "/tmp/trace" in entered and "job.sh" in entered
    assert containers(engine)
    said = boxed.person.ci_tasks("clean", "--host", "box", "--all")
    assert said.code == 0, said.out + said.err
    assert re.search(r"containers and images of runs:\n  container [^/]\S+, [\d.]+ (k|M|G)B\n", said.out)
    assert not boxed.there.exists(), said.out
