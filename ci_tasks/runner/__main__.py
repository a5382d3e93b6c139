"""`python runner.pyz start RUN_DIR`, `… cancel RUN_DIR`, `… docker RUN_DIR -- WORDS` (what `bin/docker` calls)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import List

from . import adapter, containers, layout, process, supervise


def main(argv: List[str]) -> int:
    command, run_dir = argv[0], argv[1]
    if command == "start":
        return start(run_dir)
    if command == "cancel":
        return cancel(run_dir)
    if command == "docker":
        return adapter.main(argv[3:], run_dir)
    raise SystemExit("ci-tasks runner: no command %r" % command)


def start(run_dir: str) -> int:
    """Begin the run in a process of its own session that no caller is the parent of; return when it is on record."""
    paths = layout.RunDir(run_dir)
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            _close_streams()
            supervise.supervise(run_dir)
        os._exit(0)
    os.waitpid(first, 0)
    deadline = time.monotonic() + 10
    while not os.path.exists(paths.status):
        if time.monotonic() > deadline:
            print("ci-tasks runner: did not start within 10 s in %s" % run_dir, file=sys.stderr)
            return 1
        time.sleep(0.005)
    return 0


def cancel(run_dir: str) -> int:
    """Ask the runner to end its job. A runner that is gone cannot: then what it left is ended here."""
    paths = layout.RunDir(run_dir)
    status = layout.read_json(paths.status)
    if process.alive(status):
        os.kill(status["pid"], signal.SIGTERM)
        return 0
    if status.get("state") != layout.STATE_ENDED:
        containers.remove(paths.path)
        process.end_all(paths.path, status.get("group"), supervise.PATIENCE)
    return 0


def _close_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
