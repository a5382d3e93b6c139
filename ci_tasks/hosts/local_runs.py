"""This machine as a host: run directories written here, agents started here, as a remote host's would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ci_tasks import debug_log
from ci_tasks.agent import archive, create_run_directory, liveness
from ci_tasks.agent.client_watch import ClientWatch
from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import RunDir, read_status, read_status_if_readable
from ci_tasks.errors import Blocked
from ci_tasks.records import Plan

# -I: the caller's PYTHONPATH and user packages must not reach into the agent.
_PYTHON = (sys.executable, "-I", "-S")
_NONE: Mapping[str, str] = {}
_GLANCE = 0.02  # seconds between two looks at a run that somebody waits for


def write_run_dir(run: RunDir, plan: Plan) -> None:
    """Everything that the agent needs, in one directory that can also be copied elsewhere."""
    create_run_directory.write_run_dir(run, plan, archive.for_this_machine())


def start(run: RunDir, secrets: Mapping[str, str] = _NONE) -> None:
    """Begin the run in a process of its own that outlives this one; `secrets` come on top of our environment. Raises
    Blocked where that cannot be."""
    debug_log.LOGGER.debug("start of %s", run.path)
    problem_of_start = None
    try:
        with _interrupts_held():
            problem_of_start = _begin(run, secrets)
        problem = problem_of_start()
    except KeyboardInterrupt:
        # A start takes a moment: when it is through, the run is on record and whoever asked for it can cancel it.
        if problem_of_start is not None:
            problem_of_start()
        raise
    if problem:
        raise Blocked(f"the agent did not start: {problem}")


def _begin(run: RunDir, secrets: Mapping[str, str]) -> Callable[[], str]:
    """Returns what waits for the end of the start, and says why the agent did not start, or ""."""
    starter = subprocess.Popen(
        [*_PYTHON, run.agent, "start", run.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **secrets},
        start_new_session=True,
    )

    def problem() -> str:
        was_read = starter.stderr is None or starter.stderr.closed  # ^C came just behind the read
        said = b"" if was_read else starter.communicate()[1]
        lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return lines[-1] if starter.wait() else ""

    return problem


def complete(run: RunDir, meanwhile: Callable[[], None] = lambda: None) -> int | None:
    """Start the run and wait for its end. Returns its exit code; ^C ends the run before it goes on its way."""
    with ClientWatch(run.path):
        try:
            start(run)
            while not has_ended(run):
                time.sleep(_GLANCE)
                meanwhile()
        except KeyboardInterrupt:
            cancel(run)
            while not has_ended(run):
                time.sleep(_GLANCE)
            raise
    return read_run_status(run).exit_code


def has_ended(run: RunDir) -> bool:
    """Whether the run is over: its agent has ended."""
    return not liveness.is_held(run.path) and not liveness.is_alive(run, read_status_if_readable(run))


def read_run_status(run: RunDir) -> Status:
    return read_status(run)


def is_kept(run: RunDir) -> bool:
    """Whether it left its container and workspace on purpose."""
    return read_status_if_readable(run).kept is not None


def cancel(run: RunDir) -> None:
    """Ask the run to end; also ends what an agent that died has left."""
    subprocess.run(_cancel(run), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A ^C waits for the end of the block: in the middle of a Popen it would leave a process that nobody has."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cancel(run: RunDir) -> list[str]:
    return [*_PYTHON, run.agent, "cancel", run.path]
