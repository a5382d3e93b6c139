"""`python agent.pyz start RUN_DIR`, `… cancel …`, `… shell …`, `… batch …` as a batch job,
`… docker RUN_DIR -- WORDS` of `bin/docker`, and what run.sh asks for around install steps: `… venv RUN_DIR DIR`,
`… store-packages RUN_DIR DIR`, `… row-venv DIR BELOW`."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from typing import List, Mapping

# What a command alone needs is imported there: the container adapter runs once for each docker of the job.
from . import run_directory, signals
from .agent_log import log_traceback

_START_SECONDS = 30.0  # until the run has a status; a file system that hangs must not hang the caller


def main(argv: List[str]) -> int:
    if len(argv) >= 2:
        command, run_dir = argv[0], argv[1]
        if command == "start":
            return _report(begin(run_dir, {}))
        if command == "cancel":
            return cancel(run_dir)
        if command == "batch":
            from .slurm.batch import batch

            return batch(run_dir)
        if command == "shell":
            from .containers import kept

            return kept.shell(run_dir)
        if command == "docker":
            from .containers import adapter

            return adapter.main(argv[3:], run_dir)
        if command == "hang":
            from .hang import collect

            return collect.main(argv[1:])
        if command in ("venv", "store-packages", "row-venv") and len(argv) == 3:
            from .environments import command as environments

            by_name = {
                "venv": environments.make_venv,
                "store-packages": environments.store_packages,
                "row-venv": environments.make_row_venv,
            }
            return by_name[command](argv[1], argv[2])
    _report("usage: {start,cancel,shell,batch} RUN_DIR | docker RUN_DIR -- ARGUMENTS; got %r" % (argv,))
    return 2


def begin(run_dir: str, secrets: Mapping[str, str]) -> str:
    """Start the run in a daemon process, with `secrets` on top of our environment. Returns, as soon as it has a status,
    why it did not start, or ""."""
    paths = run_directory.RunDir(run_dir)
    if os.path.lexists(paths.status):
        return "%s has run before (it has a status.json); plan a new run" % paths.path
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller may ignore it, and then no child can be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.BLOCKED_AT_START)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(secrets)
        _become_agent(paths.path, write)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb", 0) as report:
        message = b""
        while select.select([report], [], [], _START_SECONDS)[0]:
            chunk = report.read(4096)
            if not chunk:
                is_running = message or os.path.exists(paths.status)
                return os.fsdecode(message) if is_running else "the agent died"
            message += chunk
    return "not started within %g s; is a file system hanging?" % _START_SECONDS


def cancel(run_dir: str) -> int:
    """Cancel the run, also if its agent has died."""
    from .cleanup import cancel as cancel_run

    try:
        cancel_run.cancel(run_dir)
    except cancel_run.CancelError as problem:
        return _report(str(problem))
    return 0


def _become_agent(run_dir: str, write: int) -> None:
    """Never returns; the caller reads from `write` why the agent could not start, or nothing."""
    report = os.fdopen(write, "wb", 0)
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        # Close the caller's files, pipes and locks, and leave its directory.
        os.chdir(run_dir)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for descriptor in map(int, os.listdir("/dev/fd")):
            if descriptor > 2 and descriptor != write:
                with suppress(OSError):  # the listing itself
                    os.close(descriptor)
        from . import supervisor

        supervisor.supervise(run_dir, report.close)
    except BaseException as error:
        log_traceback(run_dir, "the agent", error)
        if not report.closed:
            report.write(os.fsencode(str(error) or repr(error)))
    finally:
        os._exit(0)


def _report(problem: str) -> int:
    """The exit code, for a problem or "" for none."""
    if problem:
        print("ci-tasks agent: " + problem.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
