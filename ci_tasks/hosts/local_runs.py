"""This machine as a host: run directories written here, agents started here, as a remote host's would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from ci_tasks import debug_log
from ci_tasks.agent import archive, create_run_directory, liveness
from ci_tasks.agent.client_watch import ClientWatch
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_status, read_status_if_readable
from ci_tasks.errors import Blocked

# -I: the caller's PYTHONPATH and user packages must not reach into the agent.
_PYTHON = (sys.executable, "-I", "-S")
_POLL_INTERVAL_S = 0.02
_HELD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def write_run_dir(run: RunDir, plan: Plan) -> None:
    """Everything that the agent needs, in one directory that can also be copied elsewhere."""
    create_run_directory.write_run_dir(run, plan, archive.for_this_machine())


def start(run: RunDir, secrets: Mapping[str, str] | None = None) -> None:
    """Start the run in a process of its own that outlives this one; `secrets` come on top of our environment. Raises
    Blocked if the agent does not start."""
    debug_log.LOGGER.debug("start of %s", run.path)
    words, environ = [*_PYTHON, run.agent, "start", run.path], {**os.environ, **(secrets or {})}
    null, starter = subprocess.DEVNULL, None
    # ^C in the middle of a Popen would leave a process that is not known.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        starter = subprocess.Popen(
            words, stdin=null, stdout=null, stderr=subprocess.PIPE, env=environ, start_new_session=True
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        said = starter.communicate()[1].decode(errors="replace").strip()
    except KeyboardInterrupt:
        if starter is not None and starter.stderr is not None:
            starter.wait()  # from then on the run has a status, and can be cancelled
            starter.stderr.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if starter.returncode:
        raise Blocked(f"the agent did not start: {(said or 'it said nothing').splitlines()[-1]}")


def complete(run: RunDir, meanwhile: Callable[[], None] = lambda: None) -> int | None:
    """Start the run and wait for its end. Returns its exit code; ^C ends the run before it is raised."""
    with ClientWatch(run.path):
        try:
            start(run)
            while not has_ended(run):
                time.sleep(_POLL_INTERVAL_S)
                meanwhile()
        except KeyboardInterrupt:
            cancel(run)
            while not has_ended(run):
                time.sleep(_POLL_INTERVAL_S)
            raise
    return read_status(run).exit_code


def has_ended(run: RunDir) -> bool:
    """Whether the run is over: its agent has ended."""
    return not liveness.is_held(run.path) and not liveness.is_alive(run, read_status_if_readable(run))


def is_kept(run: RunDir) -> bool:
    """Whether it left its container and workspace on purpose."""
    return read_status_if_readable(run).kept is not None


def cancel(run: RunDir) -> None:
    """Ask the run to end; also ends what an agent that died has left."""
    words = [*_PYTHON, run.agent, "cancel", run.path]
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
