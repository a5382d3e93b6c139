"""Pausing a job's lock script, so that it is the first to try when its GPUs are released.

The script sleeps at random between two attempts, and so do the others. A process that is stopped for longer than it
sleeps tries at once when it continues, while the others still sleep. Only processes that this user may signal can be
paused, so not those in another user's container: there chance decides.
"""

from __future__ import annotations

import os
import signal
from typing import List, Optional

from .. import processes

SCRIPT = b"gpu_lock_exec"  # in the script's command line


class LockScriptPauser:
    """Stops and continues the lock script of one run."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._paused: Optional[List[int]] = None

    def pause(self) -> bool:
        """Whether a process is paused; a second call changes nothing."""
        if self._paused is None:
            scripts = [pid for pid in processes.of_run(self._run_dir, None) if _is_script(pid)]
            self._paused = [pid for pid in scripts if _send(pid, signal.SIGSTOP)]
        return bool(self._paused)

    def resume(self) -> None:
        for pid in self._paused or ():
            _send(pid, signal.SIGCONT)
        self._paused = None


def _is_script(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            return SCRIPT in source.read()
    except OSError:
        return False


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
