"""When a run is looked at: on request, if its log is silent for long, and before its timeout ends it.

A request is a file in the run directory; the agent sees it with its next heartbeat, also on another node than the one
that it was written on. The look is a process of the agent's, which it ends after a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Callable, Optional

from .. import processes
from ..files import content_of
from ..run_directory import RunDir
from .facts import Reason

MAX_SECONDS = 60.0  # for a look
BEFORE_TIMEOUT = 25.0  # seconds before the end by timeout
SHORTEST_TIMEOUT = 120.0  # a shorter one leaves no time for a look
MAX_REQUEST = 100  # characters
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
        """With each heartbeat: end a look that takes too long, begin one that is asked for."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._forget(process)
        elif process is not None and time.monotonic() > self._began + MAX_SECONDS:
            self._end("no end within %.0f s" % MAX_SECONDS)
        request = content_of(self._paths.hang_request, MAX_REQUEST + 1).decode("ascii", "replace")
        is_new = request != self._request and request.isascii() and request.isalnum() and len(request) <= MAX_REQUEST
        if is_new and not self.is_looking and time.monotonic() > self._ended + _PAUSE:
            self._request = request
            self.look("request", request)

    def look(self, reason: Reason, request: str = "") -> bool:
        """Begin a look; not while another one goes on. Returns whether it has begun."""
        if self.is_looking:
            return False
        argv = [sys.executable, "-I", "-S", self._paths.agent, "hang", self._paths.path, reason, request]
        null = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=subprocess.PIPE)
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

    def _end(self, why: str) -> None:
        assert self._process is not None
        processes.kill_and_reap(self._process)
        self._log("a look at the processes was ended: %s" % why)
        self._forget(self._process)

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        if process.returncode and process.returncode > 0:
            problem = process.stderr.read(1 << 14).decode("utf-8", "replace").strip()
            self._log("a look at the processes failed: %s" % problem[-2000:])
        process.stderr.close()
        self._process, self._ended = None, time.monotonic()


def timeout_allows(seconds: float) -> bool:
    """Whether there is time for a look before a timeout of so many seconds."""
    return seconds >= SHORTEST_TIMEOUT and os.path.isdir("/proc/self")
