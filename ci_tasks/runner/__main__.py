"""`python runner.pyz start RUN_DIR`, `… cancel …`, `… shell …`, `… batch …` as a batch job, and `… docker RUN_DIR --
WORDS` of `bin/docker`."""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import List

from . import layout, supervise, wake
from .docker import adapter, shell
from .leave import ending

_SLOWEST = 30.0  # seconds until a run is on record; a file system that hangs must not hang its caller


def main(argv: List[str]) -> int:
    if len(argv) >= 2:
        command, run_dir = argv[0], argv[1]
        if command == "start":
            return start(run_dir)
        if command == "cancel":
            return cancel(run_dir)
        if command == "batch":
            from .slurm.batch import batch

            return batch(run_dir)
        if command == "shell":
            return shell.main(run_dir)
        if command == "docker":
            return adapter.main(argv[3:], run_dir)
    _say("start RUN_DIR | cancel RUN_DIR | shell RUN_DIR | batch RUN_DIR | docker RUN_DIR -- WORDS; not %r" % (argv,))
    return 2


def start(run_dir: str) -> int:
    """Begin the run in a process of its own session that no caller is the parent of; return when it is on record."""
    paths = layout.RunDir(run_dir)
    if os.path.lexists(paths.status):
        _say("%s was run before: its status.json is there; plan a new run" % paths.path)
        return 1
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller may ignore it, and then nothing can be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, wake.HELD)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _detach(paths.path, write)
    os.close(write)
    os.waitpid(child, 0)
    problem = _report(read)
    if not problem and not os.path.exists(paths.status):
        problem = "the runner died"
    if problem:
        _say(problem)
    return 1 if problem else 0


def cancel(run_dir: str) -> int:
    """End the run, be it in its runner's place."""
    try:
        ending.cancel(run_dir)
    except ending.EndingError as problem:
        _say(str(problem))
        return 1
    return 0


def _detach(run_dir: str, write: int) -> None:
    """Become the runner and never return; the caller reads from `write` what kept it from starting, or nothing."""
    report = os.fdopen(write, "wb", 0)
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _let_go_of_caller(run_dir, write)
        supervise.supervise(run_dir, report.close)
    except BaseException as error:
        if not report.closed:
            report.write(os.fsencode(str(error) or repr(error)))
    finally:
        os._exit(0)


def _let_go_of_caller(run_dir: str, keep: int) -> None:
    """Hold none of its files, pipes and locks, nor its directory."""
    os.chdir(run_dir)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for name in os.listdir("/dev/fd"):
        if int(name) not in (0, 1, 2, keep):
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing itself


def _report(read: int) -> str:
    """What the runner says of its start: nothing, when all is well."""
    said = b""
    while select.select([read], [], [], _SLOWEST)[0]:
        chunk = os.read(read, 4096)
        if not chunk:
            return os.fsdecode(said)
        said += chunk
    return "not started within %g s; is a file system hanging?" % _SLOWEST


def _say(message: str) -> None:
    print("ci-tasks runner: " + message.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
