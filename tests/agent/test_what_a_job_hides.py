"""What a job hides from its agent is found all the same. Jobs are real; each process that must end holds a lock."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.processes import run_program

if TYPE_CHECKING:
    from tests.agent.conftest import Run

Until = Callable[..., Any]

# Overwrites the environment and the title in its own memory, as setproctitle does, whose processes Ray's workers are.
BLANK = """
import ctypes, os
os.setsid()
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
for start, end in ((fields[45], fields[46]), (fields[47], fields[48])):
    ctypes.memset(int(start), 0, int(end) - int(start))
assert not open("/proc/self/environ").read().strip("\\0")
open(os.environ["READY"], "w").close()
while True:
    ctypes.CDLL(None).pause()
"""
# Lives for a moment only: whoever lists processes and then kills them comes too late.
CHAIN = """
import os, time
os.setsid()
open(os.environ["READY"], "w").close()
end = time.monotonic() + 30
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""
DEEP = """
import os, time
for _ in range(30):
    if os.fork():
        os.wait()
    os.setpgid(0, 0)
open(os.environ["READY"], "w").close()
time.sleep(300)
"""
STAYS = '\'touch "$0"; sleep 300\' "$READY"'
ESCAPES = {
    "a session without environment": f"env -i setsid bash -c {STAYS}",
    "a daemon of such a session": f'env -i setsid bash -c \'(setsid bash -c "$0" "$1" &)\' {STAYS}',
    "a process that overwrote its environment and title": f"\"$PYTHON\" -c '{BLANK}'",
    "one that forks and exits all the time": f'env -i READY="$READY" "$PYTHON" -c \'{CHAIN}\'',
    "a deep tree of groups": f'env -i READY="$READY" setsid "$PYTHON" -c \'{DEEP}\'',
}


def _is_held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start(run: Run, until: Until, escape: str, end: str) -> None:
    """Every process inherits the descriptor of a lock, so that none is missed, whatever it has become."""
    run.start(
        f"export PYTHON={shlex.quote(run.python)}"
        ' READY="$CI_TASKS_RUN_DIR/ready"; exec 9> "$CI_TASKS_RUN_DIR/held"; flock 9\n'
        f'{escape} > /dev/null 2>&1 &\nuntil [ -e "$READY" ]; do sleep 0.01; done; {end}'
    )
    until(lambda: run.has("ready"))


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_no_process_outlives_the_run(run: Run, until: Until, escape: str) -> None:
    _start(run, until, escape, "exit 4")
    status = run.ended()
    assert (status.end, status.exit_code, status.left) == ("exit", 4, ())
    assert not _is_held(run.path / "held")
    assert [event.killed or 0 for event in run.events("killed")] > [0]


def test_what_a_long_job_orphans_is_reaped_and_its_own_exit_code_is_not_taken(run: Run, until: Until) -> None:
    run.start(
        'for n in {1..20}; do (setsid bash -c "exit 7" &); done\n'
        'touch "$CI_TASKS_RUN_DIR/ready"; until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done; exit 3'
    )
    until(lambda: run.has("ready"))
    until(lambda: len(_children(run.status().pid or 0)) == 1)  # the job itself
    (run.path / "go").touch()
    assert run.ended().exit_code == 3
    assert not run.events("killed")


def test_a_program_that_ends_before_it_is_registered_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **options)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        processes.reap_orphans(None)  # of another thread, at this moment
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(processes, "own_session", False)  # as in a supervisor
    assert run_program(["sh", "-c", "exit 3"], 10).code == 3


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
