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
from typing import Any

from ci_tasks.flows.view import last_line
from ci_tasks.hosts import local
from ci_tasks.model import HostSpec
from ci_tasks.plan.planner import Setup
from ci_tasks.runner import archive, setting
from ci_tasks.runner.layout import RunDir
from ci_tasks.runs.record import log_triage
from ci_tasks.runs.store import Batch
from ci_tasks.sync.git import Git
from ci_tasks.sync.snapshot import BASE, materialize

Say = Callable[[str], None]
Wanted = Callable[[], bool]  # whether anybody still waits for it

_GLANCE = 0.2
_MINUTES = 60.0  # that install steps may take
_REMINDER = 20.0  # seconds after which they say how far they are


def _always() -> bool:
    return True


@contextmanager
def held(setup: Setup, say: Say, wanted: Wanted = _always) -> Iterator[None]:
    """Nobody else uses the environment meanwhile; its checkout is gone afterwards."""
    os.makedirs(os.path.dirname(setup.directory), exist_ok=True)
    with open(f"{setup.directory}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that uses {setup.directory}")
            _patiently(lock.fileno(), wanted)
        try:
            yield
        finally:
            shutil.rmtree(setup.workspace, ignore_errors=True)


def _patiently(lock: int, wanted: Wanted) -> None:
    while wanted():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_GLANCE)
    raise KeyboardInterrupt


def make_ready(
    setup: Setup, batch: Batch, host: HostSpec, reuse: bool, say: Say, wanted: Wanted = _always
) -> str | None:
    """Run the install steps, unless they are done and `reuse` says that will do. Returns why it failed, or None."""
    run = RunDir(setup.directory)
    stamp = hashlib.sha256(setup.script.encode("utf-8", "surrogateescape")).hexdigest()
    if reuse and _stamp(run) == stamp:
        say("install steps: done before, reused")
        check_out(setup.workspace, batch)
        return None
    if reuse and _stamp(run):
        say("install steps: they changed since the last run, so they run again")
    shutil.rmtree(setup.directory, ignore_errors=True)
    write(setup, host)
    check_out(setup.workspace, batch)
    say(f"install steps: running, log {run.log}")
    begun = time.monotonic()
    problem = _execute(run, say, wanted)
    if problem is None:
        Path(setup.directory, "stamp").write_text(stamp)
        say(f"install steps: done in {time.monotonic() - begun:.0f} s")
    return problem


def write(setup: Setup, host: HostSpec) -> None:
    """The environment's own run directory; `bash run.sh` in it makes it ready."""
    setting.write_run_dir(RunDir(setup.directory), setup_plan(setup, host), setup.script, archive.build())


def setup_plan(setup: Setup, host: HostSpec) -> dict[str, Any]:
    """plan.json of the install steps: they are a run like any other, with neither container nor GPU."""
    return {
        "id": os.path.basename(setup.directory),
        "secrets": list(setup.secrets),
        "host_env": dict(host.env),
        "timeout_minutes": _MINUTES,
        "stall_minutes": host.stall_minutes,
        "container": {"runtime": "none"},
    }


def check_out(workspace: str, batch: Batch) -> None:
    """A clone of the batch's tree: every row of it gets the same one, whatever is edited meanwhile."""
    has_base = Git(batch.source).maybe("rev-parse", "--verify", "--quiet", BASE)
    materialize(batch.source, Path(workspace), rev="HEAD", base=BASE if has_base else None)


def failed_steps(run: RunDir, code: int | None) -> str:
    """Why install steps that ended with `code` are no good."""
    found = log_triage(run, code or 1)
    line = found.text or found.line or "no output"
    return f"the install steps ended with {code}: {line} (log {run.log})"


def _execute(run: RunDir, say: Say, wanted: Wanted) -> str | None:
    spoken = time.monotonic()

    def remind() -> None:
        nonlocal spoken
        if not wanted():
            raise KeyboardInterrupt
        if time.monotonic() - spoken > _REMINDER:
            spoken = time.monotonic()
            say(f"install steps: {last_line(run)}")

    code = local.complete(run, remind)
    return None if code == 0 else failed_steps(run, code)


def _stamp(run: RunDir) -> str:
    """What the environment was made from; empty where it is not ready."""
    try:
        return Path(run.path, "stamp").read_text() if Path(run.path, "ready").exists() else ""
    except OSError:
        return ""
