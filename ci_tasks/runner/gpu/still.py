"""Holding a job's lock script still, so that it is the first to try when its GPUs are let go.

The script sleeps at random between two attempts, and so do the others. A process that is stopped for longer than it
sleeps has slept enough when it goes on: it tries at once, while the others still sleep. Only processes that this user
may signal can be held, so not those in another user's container: there chance decides.
"""

from __future__ import annotations

import os
import signal
from typing import List, Optional

from .. import process

SCRIPT = b"gpu_lock_exec"  # as the fence knows it from its words


class Still:
    """The lock script of one run: `hold` it, and let it `go_on`."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._held: Optional[List[int]] = None

    def hold(self) -> bool:
        """Whether there is anybody to be held; asked again, it is still the same."""
        if self._held is None:
            candidates = [pid for pid in process.of_run(self._run_dir, None) if _is_script(pid)]
            self._held = [pid for pid in candidates if _signalled(pid, signal.SIGSTOP)]
        return bool(self._held)

    def go_on(self) -> None:
        for pid in self._held or ():
            _signalled(pid, signal.SIGCONT)
        self._held = None


def _is_script(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            return SCRIPT in source.read()
    except OSError:
        return False


def _signalled(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
