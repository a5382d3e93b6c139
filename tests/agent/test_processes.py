"""Processes of a run are found and ended whatever they do; signals as a descriptor."""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.processes import BLOCKED_AT_START, SignalPipe, run_program
from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import ENV_RUN_DIR

if TYPE_CHECKING:
    from tests.agent.conftest import Run

Spawn = Callable[..., "subprocess.Popen[bytes]"]
Until = Callable[..., Any]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts a process with a run's mark, in a session of its own unless told otherwise."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, mark: Path | None = None, session: bool = True) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], **({ENV_RUN_DIR: str(mark)} if mark else {})}
        started.append(subprocess.Popen(argv or ("sleep", "300"), env=env, start_new_session=session))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


OTHERS: dict[str, dict[str, Any]] = {
    "no pid": {"pid": None},
    "no such process": {"pid": 2**22 + 1},
    "a later process with its number": {"pid_start": "1"},
    "before a reboot": {"boot_id": "another"},
}


@pytest.mark.parametrize("change", [{}, *OTHERS.values()], ids=["itself", *OTHERS])
def test_a_process_is_not_taken_for_another_one(change: dict[str, Any]) -> None:
    status = Status("running", **{**processes.identity()._asdict(), **change})
    assert processes.alive(status) == (status.pid == os.getpid() and not change)


def test_a_parent_is_told_to_end_before_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[int]()
    monkeypatch.setattr(processes, "of_run", lambda *_: [2**17 + 1, 9, 2**17])
    monkeypatch.setattr(processes, "send", lambda pid, _: told.append(pid))
    processes.terminate("", None, set())
    assert told == [9, 2**17, 2**17 + 1]


def test_a_name_with_spaces_and_brackets_does_not_hide_the_start_time(tmp_path: Path, spawn: Spawn) -> None:
    program = tmp_path / "a) S 1 (b"
    os.symlink("/bin/sleep", program)
    child = spawn(str(program), "300")
    assert (processes.start_time(child.pid) or "").isdigit()


def test_processes_of_run_are_those_with_exactly_its_mark_and_those_of_its_group(tmp_path: Path, spawn: Spawn) -> None:
    process, other = tmp_path / "1", tmp_path / "11"
    marked, unmarked = spawn(mark=process), spawn()
    spawn(mark=other)
    spawn(mark=tmp_path)
    assert processes.of_run(str(process), None) == [marked.pid]
    assert set(processes.of_run(str(process), unmarked.pid)) == {marked.pid, unmarked.pid}


def test_a_group_without_any_marked_process_is_nobodys_that_we_know(
    tmp_path: Path, spawn: Spawn, until: Callable[..., Any]
) -> None:
    ours, stranger = spawn(mark=tmp_path), spawn()
    boot = processes.boot_id()
    until(lambda: processes.of_run(str(tmp_path), None))  # a new process has no environment for a moment
    assert processes.orphaned_group(Status(boot_id=boot, group=ours.pid), str(tmp_path)) == ours.pid
    assert processes.orphaned_group(Status(boot_id=boot, group=stranger.pid), str(tmp_path)) is None
    assert processes.orphaned_group(Status(boot_id="earlier", group=ours.pid), str(tmp_path)) is None
    assert processes.orphaned_group(Status(), str(tmp_path)) is None


@pytest.fixture
def signals() -> Iterator[SignalPipe]:
    numbers = (*BLOCKED_AT_START, signal.SIGCHLD, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    with SignalPipe() as pipe:
        yield pipe
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP])
def test_a_signal_wakes_the_wait_and_may_request_a_stop(signals: SignalPipe, number: int) -> None:
    os.kill(os.getpid(), number)
    assert select.select([signals.fd], [], [], 600)[0]
    signals.clear()
    assert select.select([signals.fd], [], [], 0)[0] == [], "it is not seen twice"
    assert signals.stop_requested == (number in (signal.SIGTERM, signal.SIGINT))


DEAD = """\
import os
from ci_tasks.agent import processes
processes.become_subreaper()
for _ in range(9):  # each has a session of its own, as the processes of a job have
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.setsid()
        os._exit(0)
    os.waitpid(child, 0)
while [getattr(processes.stat(pid), "state", "") for pid in processes.children(os.getpid())] != ["Z"] * 9:
    pass
job = processes.children(os.getpid())[0]
processes.kill_job(job)
print(processes.children(os.getpid()) == [job])
"""


def test_what_a_killed_job_orphans_is_reaped_but_not_the_job_itself() -> None:
    """A chain of processes that fork and exit would leave thousands."""
    assert subprocess.run([sys.executable, "-c", DEAD], capture_output=True, check=True).stdout == b"True\n"


def test_a_program_that_ended_before_it_read_all_ends_without_an_error_of_its_pipe() -> None:
    """The error that ended the block is the one that counts."""
    process = processes.start(["true"], None, "/", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"unread")  # it is in the buffer, and goes out when the pipe is closed
    process.wait()
    processes.end_program(process)
    assert process.stdin.closed


# -- what a job hides: jobs are real, and each process that must end holds a lock -----------------------------------

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
