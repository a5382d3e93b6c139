"""This machine as a host: run directories written here, agents started here, as a remote host's would be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from ci_tasks import debug_log
from ci_tasks.agent import archive, liveness
from ci_tasks.agent.__main__ import create
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_status, read_status_if_readable
from ci_tasks.errors import Blocked

# -I: the caller's PYTHONPATH and user packages must not reach into the agent.
_PYTHON = (sys.executable, "-I", "-S")
_POLL_INTERVAL_S = 0.02


def write_run_dir(run: RunDir, plan: Plan) -> None:
    """Everything that the agent needs, in one directory that can also be copied elsewhere."""
    create(run, plan, archive.for_this_machine())


def start(run: RunDir, secrets: Mapping[str, str] | None = None) -> None:
    """Start the run in a process of its own that outlives this one; `secrets` come on top of our environment. Raises
    Blocked if the agent does not start."""
    debug_log.LOGGER.debug("start of %s", run.path)
    words, null = [*_PYTHON, run.agent, "start", run.path], subprocess.DEVNULL
    environ = {**os.environ, **(secrets or {})}
    starter = subprocess.run(
        words, stdin=null, stdout=null, stderr=subprocess.PIPE, env=environ, start_new_session=True
    )
    if starter.returncode:
        said = starter.stderr.decode(errors="replace").strip() or "it said nothing"
        raise Blocked(f"the agent did not start: {said.splitlines()[-1]}")


def complete(run: RunDir, meanwhile: Callable[[], None] = lambda: None) -> int | None:
    """Start the run, whose plan has it end without a client, and wait for its end. Returns its exit code; ^C ends the
    run before it is raised."""
    client = liveness.client_lock(run.path)
    try:
        start(run)
        while not has_ended(run):
            time.sleep(_POLL_INTERVAL_S)
            meanwhile()
    except KeyboardInterrupt:
        client.release()
        cancel(run)
        while not has_ended(run):
            time.sleep(_POLL_INTERVAL_S)
        raise
    finally:
        client.release()
    return read_status(run).exit_code


def has_ended(run: RunDir) -> bool:
    """Whether the run is over: its agent has ended."""
    return not liveness.is_held(run.path) and not liveness.is_alive(run, read_status_if_readable(run))


def cancel(run: RunDir) -> None:
    """Ask the run to end; also ends what an agent that died has left."""
    words = [*_PYTHON, run.agent, "cancel", run.path]
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
