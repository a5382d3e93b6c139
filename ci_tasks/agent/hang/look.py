"""When a run is looked at: on request, if its log is silent for long, and before its timeout ends it.

A request is a file in the run directory; the agent sees it with its next heartbeat, also on another node than the one
that it was written on. The look is a process of the agent's (`collect`), which it ends after a minute.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Callable, Optional

from .. import processes, run_directory
from ..codec import RecordError
from ..files import content_of, replace_file
from ..processes import end_program
from .facts import HangFacts, Reason

MAX_SECONDS = 60.0  # for a look
BEFORE_TIMEOUT = 25.0  # seconds before the end by timeout
SHORTEST_TIMEOUT = 120.0  # a shorter one leaves no time for a look
_PAUSE = 5.0  # seconds between two looks that are asked for: the job can ask too


class HangWatcher:
    """`log` takes a line for the agent's own log."""

    def __init__(self, paths: run_directory.RunDir, log: Callable[[str], None]) -> None:
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
        if self._process and self._process.poll() is not None:
            self._end("")
        elif time.monotonic() > self._began + MAX_SECONDS:
            self._end("no end within %.0f s" % MAX_SECONDS)
        request = content_of(self._paths.hang_request, 101).decode("ascii", "replace")
        is_new = request != self._request and _is_request(request)
        if is_new and not self.is_looking and time.monotonic() > self._ended + _PAUSE:
            self._request = request
            self.look("request", request)

    def look(self, reason: Reason, request: str = "") -> bool:
        """Begin a look; not while another one goes on. Returns whether it has begun."""
        if self.is_looking:
            return False
        argv = [sys.executable, "-I", "-S", self._paths.agent, "hang", self._paths.path, reason, request]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        try:  # in our session: another would be the job's
            self._process = processes.start(argv, None, "/", start_new_session=False, **pipes)
        except OSError as error:
            self._log("a look at the processes could not begin: %s" % error.strerror)
            return False
        self._began = time.monotonic()
        return True

    def look_before(self, deadline: float, timeout: float) -> None:
        """Once, shortly before the run is ended by its timeout of so many seconds, if that leaves time for a look."""
        if not self._for_timeout and timeout >= SHORTEST_TIMEOUT and time.monotonic() >= deadline - BEFORE_TIMEOUT:
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
        self._end("the run has ended")

    def _end(self, why: str) -> None:
        """End the look, and log `why`, or its own complaint."""
        process, self._process = self._process, None
        if process is None:
            return
        self._ended = time.monotonic()
        with processes.ended(process):
            if why:
                end_program(process)
            else:
                why = process.communicate()[1].decode("utf-8", "replace").strip()[-2000:]
        if why:
            self._log("a look at the processes failed: %s" % why)


class NoLook(Exception):
    """Why nothing was seen, for a person."""


def wait_for_look(run_dir: str, request: str, is_given_up: Callable[[], bool] = lambda: False) -> HangFacts:
    """Ask the agent of a run on this host for a look, and wait for what it has seen. Raises NoLook."""
    if not _is_request(request):
        raise NoLook("no request: %.100r" % request)
    paths, until = run_directory.RunDir(run_dir), time.monotonic() + MAX_SECONDS + 10.0
    while time.monotonic() < until and not is_given_up():
        facts = facts_of(paths)
        if facts is not None and facts.request == request:
            return facts
        status = run_directory.read_status_if_readable(paths)
        if not status.exists or status.has_ended:
            raise NoLook("the run %s" % ("has ended" if status.has_ended else "has not started"))
        try:
            if content_of(paths.hang_request).decode("ascii", "replace") != request:
                replace_file(paths.hang_request, request.encode("ascii"))
        except OSError as error:
            raise NoLook("the request could not be written: %s" % error) from None
        time.sleep(0.2)
    raise NoLook("its agent has not answered within %.0f s" % (MAX_SECONDS + 10.0))


def facts_of(paths: run_directory.RunDir) -> Optional[HangFacts]:
    """What was seen last of a run."""
    try:
        return run_directory.read_record(HangFacts, paths.hang)
    except (OSError, RecordError):
        return None


def _is_request(text: str) -> bool:
    return text.isascii() and text.isalnum() and len(text) <= 100
