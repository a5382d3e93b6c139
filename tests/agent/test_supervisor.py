"""What the agent does with a job, seen from the files it leaves. Jobs are real: bash, setsid, Python."""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from ci_tasks.agent import files, gpu_locks, processes, supervisor
from ci_tasks.agent.processes import client_lock, has_client
from ci_tasks.agent.records import Plan, Status
from ci_tasks.agent.run_directory import RunDir, RunLog
from ci_tasks.results.judge_run import judge_run

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost, Run

Until = Callable[..., Any]

SOURCES = {
    "no newline at the end": b"a\nb",
    "nothing": b"",
    "every byte": bytes(range(256)) * 3,
    "carriage returns and escapes": b"10%\r20%\r\x1b[31mred\x1b[0m\n\r\n",
    "5 MB": bytes(range(256)) * 20480,
}


T = TypeVar("T")


def sure(value: T | None) -> T:
    assert value is not None
    return value


@pytest.mark.parametrize("written", SOURCES.values(), ids=SOURCES.keys())
def test_the_log_holds_exactly_the_bytes_that_the_job_wrote(run: Run, written: bytes) -> None:
    (run.path / "source").write_bytes(written)
    status = run.start('cat "$CI_TASKS_RUN_DIR/source"').ended()
    assert run.log() == written
    assert (status.log_bytes, status.log_sha256) == (len(written), hashlib.sha256(written).hexdigest())
    assert status.log_error is None


ENDS = [
    ("exit 0", 0),
    ("exit 125", 125),
    ("kill -KILL $$", 128 + signal.SIGKILL),
    ("exec python3 -c 'import os; os.kill(os.getpid(), 9)'", 128 + signal.SIGKILL),  # no child that may outlive it
    ("no-such-command", 127),
    ("exec > /dev/null 2>&1; sleep 0.2; exit 4", 4),  # output closed long before the end
]


@pytest.mark.parametrize(("script", "code"), ENDS, ids=[script for script, _ in ENDS])
def test_the_exit_code_is_the_one_that_a_shell_would_see(run: Run, script: str, code: int) -> None:
    status = run.start(script).ended()
    assert (status.end, status.exit_code) == ("exit", code)
    assert [event.event for event in run.events()] == ["started", "ended"]
    assert sure(status.started_at) <= sure(status.ended_at)
    assert status.oom_kills == (0 if "\noom_kill " in Path("/proc/vmstat").read_text() else None)


@pytest.mark.parametrize("name", ["INT", "QUIT", "HUP", "TERM", "PIPE"])
def test_a_signal_that_the_caller_ignores_is_not_ignored_in_the_job(run: Run, name: str) -> None:
    run.write(f"trap 'echo trapped' {name}; kill -{name} $$; echo after")
    subprocess.run(["bash", "-c", f'trap \'\' {name} CHLD; exec "$0" "$@"', *run.words("start")], check=True)
    assert (run.ended().exit_code, run.log()) == (0, b"trapped\nafter\n")


# -- status and events -----------------------------------------------------------------------------------------------


def test_a_silent_job_is_noticed_and_so_is_its_return(run: Run, until: Until) -> None:
    run.plan["stall_minutes"] = 0.2 / 60
    run.start('until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.05; done; echo again; sleep 0.1')
    until(lambda: run.events("stalled"))
    until(lambda: run.status().stalled)
    (run.path / "go").touch()
    assert run.ended().stalled is False
    assert [event.event for event in run.events()] == ["started", "stalled", "resumed", "ended"]


# -- timeout and cancel ----------------------------------------------------------------------------------------------

TREE = """\
cd "$CI_TASKS_RUN_DIR"
setsid bash -c 'echo $$ > session; exec sleep 300' &
bash -c 'trap "" TERM; echo $$ > stubborn; while :; do sleep 300; done' &
(setsid bash -c 'sleep 300 & echo $! > daemon; wait' &)
trap 'echo stopping; exit 9' TERM
until [ -s session ] && [ -s stubborn ] && [ -s daemon ]; do sleep 0.01; done
touch ready
while :; do sleep 0.05; done
"""
PROCESSES = ("session", "stubborn", "daemon")


@pytest.mark.parametrize("end", ["cancelled", "timeout"])
def test_a_cancel_and_a_timeout_end_the_whole_tree(run: Run, until: Until, end: str) -> None:
    run.plan["timeout_minutes"] = 1.5 / 60 if end == "timeout" else 5
    run.start(TREE)
    until(lambda: run.has("ready"))
    for _ in range(2 if end == "cancelled" else 0):
        run.cancel()  # a second one changes nothing
    status = run.ended()
    assert (status.end, status.exit_code) == (end, 9)
    assert b"stopping\n" in run.log()
    assert [event.event for event in run.events()] == ["started", end, "killed", "ended"]
    assert [processes.start_time(run.pid(name)) for name in PROCESSES] == [None] * 3


def test_what_a_job_starts_while_it_is_ended_is_ended_with_it(run: Run, until: Until) -> None:
    # The trap goes before the fork: else bash's child may swallow the signal before it becomes `setsid`.
    trap = "trap 'trap - TERM; setsid sleep 300 & exit 9' TERM"
    run.start(f"{trap}; touch $CI_TASKS_RUN_DIR/ready; while :; do sleep 0.05; done")
    until(lambda: run.has("ready"))
    run.cancel()
    run.ended()
    assert [event.event for event in run.events()] == ["started", "cancelled", "ended"], "nothing had to be killed"


def test_the_end_is_noticed_at_once_although_a_daemon_keeps_the_output_open(run: Run) -> None:
    """It gets a second in which to write, then it is ended and counted; the run does not wait for it."""
    run.start("(sleep 0.3; echo late) & setsid sleep 300 & sleep 0.1; echo done; exit 0")
    status = run.ended()
    assert (status.end, status.exit_code) == ("exit", 0)
    assert run.log() == b"done\nlate\n"
    assert [event.killed for event in run.events("killed")] == [1]
    assert not run.alive()


def test_a_job_that_ends_before_a_cancel_is_seen_was_not_cancelled(run: Run, until: Until) -> None:
    """The agent is held still, so that it finds both at once."""
    run.start('until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.01; done; exit 6')
    until(lambda: run.status().group)
    status = run.status()
    os.kill(sure(status.pid), signal.SIGSTOP)
    (run.path / "go").touch()
    until(lambda: processes.start_time(sure(status.group)) is None)
    os.kill(sure(status.pid), signal.SIGTERM)
    os.kill(sure(status.pid), signal.SIGCONT)
    status = run.ended()
    assert (status.end, status.exit_code) == ("exit", 6)


def test_orphans_are_reaped_also_while_the_end_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    reaped = threading.Event()

    def reap(job: int) -> None:
        if job == 7:
            reaped.set()

    monkeypatch.setattr(processes, "reap_orphans", reap)
    agent: Any = SimpleNamespace(status=Status(group=7), last_heartbeat=time.monotonic(), _heartbeat=lambda: True)
    assert supervisor.Supervisor._while_beating(agent, lambda: reaped.wait(20))


# -- what goes wrong with the agent and its machine -----------------------------------------------------------------


def test_a_job_finishes_although_its_log_cannot_be_written(run: Run) -> None:
    """A full disk ends no job in the middle of a write, and is not taken for the test's own failure."""
    os.symlink("/dev/full", run.paths.log)
    run.start('head -c 300000 /dev/zero; touch "$CI_TASKS_RUN_DIR/finished"; exit 1')
    status = run.ended()
    assert run.has("finished")
    assert (status.end, status.exit_code, status.changed) == ("exit", 1, ())
    assert status.log_error == "the log could not be written: No space left on device"
    record = judge_run(run.paths)
    assert (record.status, record.reason) == ("blocked", status.log_error)


BUG = """\
import sys, time
from ci_tasks.agent import supervisor

def fail(*_):
    while not open(sys.argv[1] + "/begun", "a+").tell():
        time.sleep(0.01)
    raise RuntimeError("a bug")

supervisor.Supervisor._pump = fail
supervisor.supervise(sys.argv[1], lambda: None)
"""


def test_a_bug_while_the_job_runs_ends_the_run_and_its_processes(run: Run) -> None:
    run.write('setsid sleep 300 & echo yes > "$CI_TASKS_RUN_DIR/begun"; wait')
    package = str(Path(supervisor.__file__).parents[2])
    subprocess.run([sys.executable, "-c", BUG, run.path], env={**os.environ, "PYTHONPATH": package}, check=True)
    assert not run.alive()
    status = run.status()
    assert (status.state, status.end, status.error) == ("ended", "error", "RuntimeError('a bug')")
    assert "a bug" in Path(run.paths.agent_log).read_text()


# -- what a run waits for --------------------------------------------------------------------------------------------

LOCK_SCRIPT = Path(__file__).parent.parent.parent / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
UNTIL_GO = 'until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done'


def _gpus(run: Run, gpu_host: GpuHost, count: int, by: str, **more: Any) -> None:
    """`run` needs so many of eight simulated GPUs, if nothing else is said."""
    run.plan["gpu_locks"] = {"count": count, "by": by, "pattern": gpu_host.pattern, "total": 8, "simulated": 8, **more}


def _script(gpu_host: GpuHost, count: int, command: str) -> str:
    lock = shlex.join([sys.executable, str(LOCK_SCRIPT), "--count", str(count), "--"])
    return f"export CI_TASKS_GPU_LOCK_DIR={shlex.quote(str(gpu_host.path))}; {lock} bash -c {shlex.quote(command)}"


def _environ(gpu_host: GpuHost) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "CI_TASKS_LOCK_DIR": str(gpu_host.path)}


def _waits(run: Run, until: Until) -> Status:
    until(lambda: run.status().phase == "waiting" and run.status().waiting)
    return run.status()


def test_gpus_that_the_jobs_own_script_takes_are_on_record(run: Run, gpu_host: GpuHost, until: Until) -> None:
    holder = gpu_host.hold(0, CI_TASKS_RUN_DIR="/runs/batch/03")
    _gpus(run, gpu_host, 4, "job", simulated=4)
    run.start(_script(gpu_host, 4, f"{UNTIL_GO}; exit 7"), **_environ(gpu_host))
    assert _waits(run, until).waiting[0].startswith("GPU 0 held by run batch.03")
    assert gpu_host.free() == [1, 2, 3]
    gpu_host.end(holder)
    until(lambda: run.status().phase == "running" and run.status().gpu_ids)
    assert run.status().gpu_ids == (0, 1, 2, 3)
    assert 0 < run.status().queue_seconds < 600
    assert gpu_host.free() == [4, 5, 6, 7]  # the others are no longer blocked
    (run.path / "go").touch()
    assert run.ended().exit_code == 7
    assert [event.ids for event in run.events("gpus")] == [(0, 1, 2, 3)]
    assert run.events("waiting")


def test_gpus_stay_locked_while_the_job_of_a_killed_agent_lives(run: Run, gpu_host: GpuHost, until: Until) -> None:
    run.plan["exclusive"] = ["ray"]
    _gpus(run, gpu_host, 2, "agent", simulated=None)
    gpu_host.smi(*[4] * 8)
    run.start(f'touch "$CI_TASKS_RUN_DIR/ready"; {UNTIL_GO}', **_environ(gpu_host))
    until(lambda: run.has("ready"))
    os.kill(sure(run.status().pid), signal.SIGKILL)
    until(lambda: not processes.alive(run.status()))
    assert gpu_host.free() == [2, 3, 4, 5, 6, 7]
    assert gpu_locks.is_held(str(gpu_host.path / "ci-tasks-ray.lock"))
    run.cancel()
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert not gpu_locks.is_held(str(gpu_host.path / "ci-tasks-ray.lock"))


def test_a_host_that_can_never_run_the_job_does_not_begin_it(run: Run, gpu_host: GpuHost) -> None:
    gpu_host.smi(4, 4, 4, 4)
    _gpus(run, gpu_host, 8, "job", simulated=None)
    status = run.start('touch "$CI_TASKS_RUN_DIR/begun"', **_environ(gpu_host)).ended()
    assert not run.has("begun")
    assert (status.end, status.exit_code) == ("exit", 125)
    record = judge_run(run.paths)
    assert (record.status, record.reason) == ("blocked", "this host has 4 GPUs, the job needs 8")


def _waits_for_a_name(run: Run, gpu_host: GpuHost) -> str:
    gpu_host.hold(str(gpu_host.path / "ci-tasks-ray.lock"))
    run.plan["exclusive"] = ["ray"]
    return "exit 0"


def _waits_in_the_script(run: Run, gpu_host: GpuHost) -> str:
    gpu_host.hold(0)
    _gpus(run, gpu_host, 8, "job")
    return _script(gpu_host, 8, "exit 0")


WAITERS = [_waits_for_a_name, _waits_in_the_script]


@pytest.mark.parametrize("prepare", WAITERS)
def test_a_run_that_waits_can_be_cancelled(
    run: Run, gpu_host: GpuHost, until: Until, prepare: Callable[[Run, GpuHost], str]
) -> None:
    run.start(prepare(run, gpu_host), **_environ(gpu_host))
    _waits(run, until)
    run.cancel()
    status = run.ended()
    assert (status.end, status.waiting) == ("cancelled", ())
    assert gpu_host.free()[-1] == 7
    assert len(run.events("cancelled")) == 1


def test_a_run_that_waited_until_its_timeout_is_blocked_not_failed(run: Run, gpu_host: GpuHost) -> None:
    run.plan["timeout_minutes"] = 0.05
    run.start(_waits_in_the_script(run, gpu_host), **_environ(gpu_host)).ended()
    record = judge_run(run.paths)
    assert (record.status, record.exit_code) == ("blocked", 125)
    assert record.reason.startswith("waited for 0.05 min: ") and "held by pid" in record.reason


# -- a run that is of no use without a client ------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (supervisor, files):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def install(tmp_path: Path) -> str:
    """The directory of such a run."""
    Path(RunDir(str(tmp_path)).client).touch()
    return str(tmp_path)


def test_it_is_cancelled_its_seconds_after_the_last_client(install: str, clock: Clock) -> None:
    agent: Any = SimpleNamespace(
        paths=RunDir(install), signals=SimpleNamespace(stop_requested=False), last_client=clock.now
    )
    agent.log, agent.plan, agent.status = RunLog(agent.paths.log, ()), Plan(client_seconds=60), Status()

    def is_cancelled() -> bool:
        supervisor.Supervisor._check_client(agent)
        return bool(agent.signals.stop_requested)

    for _ in range(2):
        first, second = client_lock(install), client_lock(install)
        first.close()
        clock.now += 500
        assert not is_cancelled(), "one of several clients is enough"
        second.close()
        clock.now += 59
        assert not is_cancelled()
    clock.now += 1
    for more in (Plan(), Plan(client_seconds=61)):
        agent.plan = more
        assert not is_cancelled()
    agent.plan, agent.status = Plan(client_seconds=60), Status(phase="collecting")
    assert not is_cancelled(), "its job has ended, and its log is closed"
    agent.status = Status()
    assert is_cancelled() and is_cancelled()
    said = Path(agent.paths.log).read_text()
    assert said == "ci-tasks: cancelled: no client waits for it\n"


def test_a_client_that_is_killed_waits_no_more(install: str) -> None:
    code = "import sys; from ci_tasks.agent.processes import client_lock as C; c = C(sys.argv[1]); print(); input()"
    argv = [sys.executable, "-c", code, install]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert has_client(install)
        client.kill()
        client.wait()
        assert not has_client(install)


def test_without_the_file_no_client_waits(install: str) -> None:
    os.unlink(RunDir(install).client)
    assert not has_client(install)
    client_lock(install).close()  # and no error


def test_a_client_waits_for_the_agent_that_looks_at_this_moment(
    install: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(RunDir(install).client, os.O_RDWR)
    assert files.try_lock(looking)
    monkeypatch.setattr(clock, "sleep", lambda _: os.close(looking))
    with client_lock(install):
        assert has_client(install)
