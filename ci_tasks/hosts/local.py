"""This machine as a host: run directories written here, runners started here, as a remote host's would be."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ci_tasks.errors import Blocked
from ci_tasks.model import Plan
from ci_tasks.runner import archive, layout, process, setting
from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.runner.leave import ending

# -I: the caller's PYTHONPATH and user packages must not reach into the runner.
_PYTHON = (sys.executable, "-I")
_GLANCE = 0.02  # seconds between two looks at a run that somebody waits for


def write_run_dir(run: RunDir, plan: Plan) -> None:
    """Everything that the runner needs, in one directory that can also be copied elsewhere."""
    setting.write_run_dir(run, plan.public(), plan.script, archive.build())


def start(run: RunDir) -> None:
    """Begin the run in a process of its own that outlives this one. Raises Blocked where that cannot be."""
    starter = None
    try:
        with _interrupts_held():
            starter = subprocess.Popen(
                [*_PYTHON, run.runner, "start", run.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        _, words = starter.communicate()
    except KeyboardInterrupt:
        # A start takes a moment: when it is through, the run is on record and whoever asked for it can cancel it.
        if starter is not None:
            starter.communicate()
        raise
    if starter.returncode:
        said = words.decode(errors="replace").strip()
        raise Blocked(f"the runner did not start: {said.splitlines()[-1] if said else 'it said nothing'}")


def complete(run: RunDir, meanwhile: Callable[[], None] = lambda: None) -> int | None:
    """Start the run and wait for its end. Returns its exit code; ^C ends the run before it goes on its way."""
    try:
        start(run)
        while not ended(run):
            time.sleep(_GLANCE)
            meanwhile()
    except KeyboardInterrupt:
        cancel(run)
        while not ended(run):
            time.sleep(_GLANCE)
        raise
    code: int | None = status(run).get("exit_code")
    return code


def ended(run: RunDir) -> bool:
    """Whether the run is over: it said so, or its runner is gone."""
    status = read_json(run.status)
    return status.get("state") == layout.STATE_ENDED or not process.alive(status)


def status(run: RunDir) -> dict[str, Any]:
    return read_json(run.status)


def cancel(run: RunDir) -> None:
    """Ask the run to end; also ends what a runner that died has left."""
    subprocess.run(_cancel(run), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def request_cancel(run: RunDir) -> None:
    """Like `cancel`, without waiting, and deaf to the ^C that may follow."""
    subprocess.Popen(_cancel(run), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)


def kill(run: RunDir) -> None:
    """End everything of the run now, without patience."""
    ending.kill(run.path)


def clear(run: RunDir) -> None:
    """After the end: what a runner that died has left. A runner that lived to the end has left nothing."""
    if read_json(run.status).get("state") != layout.STATE_ENDED:
        cancel(run)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A ^C waits for the end of the block: in the middle of a Popen it would leave a process that nobody has."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cancel(run: RunDir) -> list[str]:
    return [*_PYTHON, run.runner, "cancel", run.path]
