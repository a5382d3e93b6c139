"""When a run is looked at: because somebody asks, since its log is silent for long, and before its timeout ends it.

Whoever asks puts a file into the run directory; the agent sees it with its next heartbeat, also on another node than
the one that it was written on. The look is a process of the agent's, which it ends after a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Callable, Optional

from .. import process_tree
from ..files import read_file
from ..run_directory import RunDir
from .facts import Reason

MAX_SECONDS = 60.0  # for a look
BEFORE_TIMEOUT = 25.0  # seconds before the end by timeout
SHORTEST_TIMEOUT = 120.0  # a shorter one leaves no time for a look
_MAX_REQUEST = 100  # characters
_PAUSE = 5.0  # seconds between two looks that are asked for: the job can ask too


class HangWatcher:
    """`log` takes a line for the agent's own log."""

    def __init__(self, paths: RunDir, log: Callable[[str], None]) -> None:
        self._paths, self._log = paths, log
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._began = self._ended = 0.0
        self._request = ""
        self._for_timeout = False
        self._silence = self._looks_at_silence = 0

    @property
    def is_looking(self) -> bool:
        return self._process is not None

    def poll(self) -> None:
        """With each heartbeat: end a look that takes too long, begin one that somebody asks for."""
        self._reap()
        request = self._requested()
        if request and request != self._request and not self.is_looking and time.monotonic() > self._ended + _PAUSE:
            self._request = request
            self.look("request", request)

    def look(self, reason: Reason, request: str = "") -> bool:
        """Begin a look; not while another one goes on. Returns whether it has begun."""
        if self.is_looking:
            return False
        argv = [sys.executable, "-I", "-S", self._paths.agent, "hang", self._paths.path, reason, request]
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._log("a look at the processes could not begin: %s" % error.strerror)
            return False
        self._began = time.monotonic()
        return True

    def look_before(self, deadline: float) -> None:
        """Once, shortly before the run is ended by its timeout."""
        if not self._for_timeout and time.monotonic() >= deadline - BEFORE_TIMEOUT:
            self._for_timeout = self.look("timeout")

    def look_at_silence(self, began: float, seconds: float, limit: float) -> None:
        """The log is silent for so many seconds: look after `limit`, twice `limit` and so on; and after half of it, for
        what the others are compared with, whether anything has been computed in between."""
        silence = int(began * 1000)
        if silence != self._silence:
            self._silence, self._looks_at_silence = silence, 0
        if seconds >= limit * 2 ** (self._looks_at_silence - 1):
            self._looks_at_silence += self.look("stall", "silence%d" % silence)

    def close(self) -> None:
        """The job is over: nothing is left to be seen."""
        if self._process is not None:
            self._end("the run has ended")

    def _requested(self) -> str:
        try:
            text = read_file(self._paths.hang_request, _MAX_REQUEST + 1).decode("ascii")
        except (OSError, ValueError):
            return ""
        return text if text.isalnum() and len(text) <= _MAX_REQUEST else ""

    def _reap(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            if time.monotonic() > self._began + MAX_SECONDS:
                self._end("no end within %.0f s" % MAX_SECONDS)
            return
        assert process.stderr is not None
        problem = process.stderr.read(1 << 14).decode("utf-8", "replace").strip()
        process.stderr.close()
        self._process, self._ended = None, time.monotonic()
        if process.returncode:
            self._log("a look at the processes failed: %s" % problem[-2000:])

    def _end(self, why: str) -> None:
        process = self._process
        assert process is not None
        process_tree.kill_and_reap(process)
        if process.stderr is not None:
            process.stderr.close()
        self._process, self._ended = None, time.monotonic()
        self._log("a look at the processes was ended: %s" % why)


def timeout_allows(seconds: float) -> bool:
    """Whether there is time for a look before a timeout of so many seconds."""
    return seconds >= SHORTEST_TIMEOUT and bool(os.path.isdir("/proc/self"))
