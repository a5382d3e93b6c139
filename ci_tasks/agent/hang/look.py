"""When a run is looked at: on request, if its log is silent for long, and before its timeout ends it.

A request is a file in the run directory; the agent sees it with its next heartbeat, also on another node than the one
that it was written on. The look is a process of the agent's (`collect`), which it ends after a minute.

A client sends py-spy to a host once; it is kept below the home of all runs, named by its content.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zlib
from typing import Callable, Iterable, Optional

from .. import programs, run_directory
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
            with programs.ended(self._process):
                problem = self._process.communicate()[1].decode("utf-8", "replace").strip()
            if self._process.returncode:
                self._log("a look at the processes failed: %s" % problem[-2000:])
            self._process, self._ended = None, time.monotonic()
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
        try:
            self._process = programs.start(argv, None, "/", start_new_session=False, **pipes)
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
        if self._process is not None:
            with programs.ended(self._process):
                end_program(self._process)
            self._log("a look at the processes was ended: %s" % why)
            self._process, self._ended = None, time.monotonic()


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
            raise NoLook("the run %s" % ("has ended" if status.has_ended else "has not begun"))
        try:
            if content_of(paths.hang_request).decode("ascii") != request:
                replace_file(paths.hang_request, request.encode("ascii"))
        except (OSError, ValueError) as error:
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


MAX_PROGRAM = 64 << 20  # bytes
TOOLS, PY_SPY = "tools", "py-spy-"  # the directory, and what the program's name begins with


# -- py-spy ------------------------------------------------------------------------------------------------------------


def find_py_spy(run_dir: str) -> bytes:
    """The program that a client has sent to the host of a run, for a machine like this one; empty if there is none."""
    directory = os.path.join(os.path.abspath(run_dir).rpartition("/runs/")[0] or "/nowhere", TOOLS)
    machine = content_of(sys.executable, 20)[18:]  # as an ELF header says it
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        content = content_of(os.path.join(directory, name), MAX_PROGRAM + 1)
        if content[18:20] == machine and name == PY_SPY + hashlib.sha256(content).hexdigest():
            return content
    return b""


def store_program(home: str, prefix: str, sha256: str, chunks: Iterable[bytes]) -> None:
    """Keep a program below `home`, under its hash; `chunks` are zlib's form of it. Raises OSError, and ValueError if it
    has another hash."""
    try:
        program = zlib.decompressobj().decompress(b"".join(chunks), MAX_PROGRAM + 1)
    except zlib.error as error:
        raise ValueError("the program is not in zlib's form: %s" % error) from None
    if hashlib.sha256(program).hexdigest() != sha256:
        raise ValueError("the program is not the one with this hash, or larger than %d MiB" % (MAX_PROGRAM >> 20))
    path = os.path.join(home, TOOLS, prefix + sha256)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    replace_file(path, program)


def remove_old_programs(home: str, oldest: float) -> None:
    """Those that were stored before `oldest`, in seconds since the epoch; the newest stays."""
    directory = os.path.join(home, TOOLS)
    entries = os.scandir(directory) if os.path.isdir(directory) else ()
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-1]:
        if entry.stat().st_mtime < oldest:
            os.unlink(entry.path)
