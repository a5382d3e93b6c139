"""^C at a line of `hosts` while a row starts over real SSH: it ends as cancelled, and nothing is left on the host.

    CI_TASKS_TEST_LINES=all pytest tests/integration/test_remote_interrupts.py    # at every line: minutes
    CI_TASKS_TEST_LINES=3/8 pytest …                                              # the third eighth of them

Without the variable a few lines stand for the others. tests/run/test_interrupts.py has every line, also of `run`, on
simulated hosts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import hosts
from tests import fixtures as support

SIM = "hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}}\n"
SAMPLE = 3
WANTED = os.environ.get("CI_TASKS_TEST_LINES", "")
WORKFLOW = """\
on: pull_request
jobs:
  e2e-test-lines:
    runs-on: [self-hosted, cpu]
    strategy:
      matrix:
        info:
          - {num_gpus: 1, test_file: test_metrics.py}
    steps:
      - uses: actions/checkout@v4
      - run: touch "$MARK"; sleep 600
"""
# Runs in the command's own process, before it. Lines of the main thread count once the plan is written; ^C comes at the
# first execution of `press_at`, or when the row runs.
TRACER = """
import glob, os, signal, sys, threading, time
folder, plans, mark, lines, press_at = {folder!r}, {plans!r}, {mark!r}, {lines!r}, {press_at!r}
seen, is_planned, is_over = dict(), False, threading.Event()

def press():
    if not is_over.is_set():
        is_over.set()
        with open(lines, "w") as out:
            out.writelines("%s:%d\\n" % line for line in seen)
        os.kill(os.getpid(), signal.SIGINT)

def trace(frame, event, _):
    global is_planned
    if is_over.is_set() or not frame.f_code.co_filename.startswith(folder):
        return None
    is_planned = is_planned or bool(glob.glob(plans))
    if event == "line" and is_planned:
        line = (frame.f_code.co_filename, frame.f_lineno)
        seen.setdefault(line)
        if line == press_at:
            press()
    return trace

def press_when_it_runs():
    while not os.path.exists(mark) and not is_over.is_set():
        time.sleep(0.01)
    press()

threading.Thread(target=press_when_it_runs, daemon=True).start()
sys.settrace(trace)
"""


class RemoteStart:
    """A command whose row never ends by itself."""

    def __init__(self, person: Any, box: Any, directory: Path) -> None:
        self.person, self.box = person, box
        self.mark, self.lines = directory / "begun", directory / "lines"
        person.write(".github/workflows/pr-test.yml", WORKFLOW.replace("$MARK", str(self.mark)))

    def run(self, press_at: tuple[str, int] | None = None) -> int:
        shutil.rmtree(self.person.home / "runs", ignore_errors=True)
        self.mark.unlink(missing_ok=True)
        self.person.first = TRACER.format(
            folder=f"{Path(hosts.__file__).parent}/",
            plans=str(self.person.home / "runs/*/*/plan.json"),
            mark=str(self.mark),
            lines=str(self.lines),
            press_at=press_at,
        )
        return int(self.person.ci_tasks("remote", "--host", "box", "lines").code)

    def executed_lines(self) -> list[tuple[str, int]]:
        """In the order in which they are executed first."""
        assert self.run() == 130
        pairs = (line.rpartition(":") for line in self.lines.read_text().splitlines())
        return [(file, int(number)) for file, _, number in pairs]

    def statuses(self) -> list[str]:
        return [record["status"] for record in self.person.records()] if any(self.person.home.glob("runs/*")) else []

    def left(self) -> list[str]:
        """Directories of runs on the host, and processes that belong to one."""
        runs = self.box.home / ".ci-tasks/runs"
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        mark = f"{runs}/".encode()
        return [str(path) for path in [*runs.rglob("*"), *(entry for entry in processes if _names(entry, mark))]]


def _names(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes() or mark in (process / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return False


def _selected(lines: list[tuple[str, int]]) -> list[tuple[str, int]]:
    if not WANTED:
        return lines[len(lines) // (2 * SAMPLE) :: -(-len(lines) // SAMPLE)]
    part, _, parts = WANTED.partition("/")
    return lines if WANTED == "all" else lines[int(part) - 1 :: int(parts)]


@pytest.fixture
def start(person: Any, sshd: Any, tmp_path: Path) -> RemoteStart:
    box = sshd.start("box")
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(SIM)
    person.env.update(sshd.env, CI_TASKS_HOSTS=str(hosts))
    return RemoteStart(person, box, tmp_path)


@pytest.mark.timeout(0 if WANTED else 120)
def test_ctrl_c_at_any_line_of_a_remote_start_ends_the_row_as_cancelled_and_leaves_nothing(start: RemoteStart) -> None:
    """Or nothing had begun, and there is no record either."""
    lines = start.executed_lines()
    assert (len(lines) > 50, start.statuses(), start.left()) == (True, ["cancelled"], [])
    wrong = {}
    for line in _selected(lines):
        code, statuses = start.run(press_at=line), start.statuses()
        if code != 130 or statuses not in ([], ["cancelled"]) or start.left():
            said = support.CommandResult(code, "", start.person.results[-1].err)
            wrong[line] = said, statuses, start.left()
    assert not wrong
