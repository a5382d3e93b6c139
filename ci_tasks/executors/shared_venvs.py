"""The venvs that rows share: made once by CI's own install steps, and used again when a person asks for it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ci_tasks.agent import archive, create_run_directory, run_directory
from ci_tasks.agent.containers.rules import NONE, ContainerRules
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.agent.setup_manifest import READY, VENV, WORKSPACE, changed_files, check_setup, forget
from ci_tasks.config import HostSpec
from ci_tasks.executors import local_runs
from ci_tasks.executors.last_line import last_line
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.records import Plan
from ci_tasks.results.record import log_facts, log_triage
from ci_tasks.results.verdict import JobEnd

Say = Callable[[str], None]
ShouldContinue = Callable[[], bool]  # whether anybody still waits for it
CheckOut = Callable[[str], None]  # makes a workspace

_GLANCE = 0.2
_MINUTES = 60.0  # that install steps may take
_REMINDER = 20.0  # seconds after which they say how far they are


def _always() -> bool:
    return True


@contextmanager
def lock_venv(setup: SharedSetup, say: Say, should_continue: ShouldContinue = _always) -> Iterator[None]:
    """Nobody else uses the environment meanwhile; its checkout is gone afterwards."""
    os.makedirs(os.path.dirname(setup.directory), exist_ok=True)
    with open(f"{setup.directory}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that uses {setup.directory}")
            _acquire(lock.fileno(), should_continue)
        try:
            yield
        finally:
            shutil.rmtree(setup.workspace, ignore_errors=True)


def _acquire(lock: int, should_continue: ShouldContinue) -> None:
    while should_continue():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_GLANCE)
    raise KeyboardInterrupt


def install(
    setup: SharedSetup,
    check_out: CheckOut,
    host: HostSpec,
    reuse: bool,
    say: Say,
    should_continue: ShouldContinue = _always,
) -> str | None:
    """Run the install steps, unless they are done and `reuse` says that will do. Returns why it failed, or None."""
    run = RunDir(setup.directory)
    stamp = hashlib.sha256(setup.script.encode("utf-8", "surrogateescape")).hexdigest()
    if reuse and _stamp(run) == stamp:
        changed = changed_files(setup.directory, (VENV, READY))
        if not changed:
            say("install steps: done before, reused")
            forget(setup.directory, WORKSPACE)
            check_out(setup.workspace)
            check_setup(setup.directory)
            return None
        say(f"install steps: {changed[0]} was changed since the last run, so they run again")
    elif reuse and _stamp(run):
        say("install steps: they changed since the last run, so they run again")
    shutil.rmtree(setup.directory, ignore_errors=True)
    write(setup, host)
    check_out(setup.workspace)
    say(f"install steps: running, log {run.log}")
    begun = time.monotonic()
    problem = _execute(run, say, should_continue)
    if problem is None:
        check_setup(setup.directory)
        Path(setup.directory, "stamp").write_text(stamp)
        say(f"install steps: done in {time.monotonic() - begun:.0f} s")
    return problem


def write(setup: SharedSetup, host: HostSpec) -> None:
    """The environment's own run directory; `bash run.sh` in it makes it ready."""
    create_run_directory.write_run_dir(RunDir(setup.directory), setup_plan(setup, host), archive.build())


def setup_plan(setup: SharedSetup, host: HostSpec) -> Plan:
    """plan.json of the install steps: they are a run like any other, with neither container nor GPU."""
    return Plan(
        id=os.path.basename(setup.directory),
        secrets=setup.secrets,
        host_env=host.env,
        timeout_minutes=_MINUTES,
        stall_minutes=host.stall_minutes,
        container=ContainerRules(runtime=NONE),
        script=setup.script,
        keeps_workspace=True,
    )


def failure_message(run: RunDir, code: int | None) -> str:
    """Why install steps that ended with `code` are no good."""
    triage = log_triage(run, JobEnd(run_directory.END_EXIT, code or 1))
    last = log_facts(run).last_line if triage is None else None
    line = (triage.text or triage.line if triage else last and last[1]) or "no output"
    return f"the install steps ended with {code}: {line} (log {run.log})"


def _execute(run: RunDir, say: Say, should_continue: ShouldContinue) -> str | None:
    spoken = time.monotonic()

    def remind() -> None:
        nonlocal spoken
        if not should_continue():
            raise KeyboardInterrupt
        if time.monotonic() - spoken > _REMINDER:
            spoken = time.monotonic()
            say(f"install steps: {last_line(run)}")

    code = local_runs.complete(run, remind)
    return None if code == 0 else failure_message(run, code)


def _stamp(run: RunDir) -> str:
    """What the environment was made from; empty where it is not ready."""
    try:
        return Path(run.path, "stamp").read_text() if Path(run.path, "ready").exists() else ""
    except OSError:
        return ""
