"""A look at the processes of a run that may hang: what is seen (the content of hang/facts.json), when the agent looks,
and how it is asked to.

It looks on request, if the log is silent for long, and before the timeout ends the run. A request is a file in the run
directory; the agent sees it with its next heartbeat, also on another node than the one that it was written on. The look
is a process of the agent's (`collect`), which it ends after a minute.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import field
from typing import Callable, Literal, Mapping, Optional, Tuple

from .. import processes, run_directory
from ..codec import RecordError
from ..files import content_of, replace_file
from ..quick_dataclass import dataclass
from ..run_directory import log_traceback

MAX_SECONDS = 60.0  # for a look
BEFORE_TIMEOUT = 25.0  # seconds before the end by timeout
SHORTEST_TIMEOUT = 120.0  # a shorter one leaves no time for a look
_PAUSE = 10.0  # seconds from the start of a look to one that is asked for: the job can ask too

Reason = Literal["request", "stall", "timeout"]


@dataclass(frozen=True)
class ProcessFacts:
    """A process of the run, which was there in both looks or is gone. `place` is its container, empty for none; pids
    count there. `namespace_pid` is its number in its innermost namespace. `env` are the variables that say its rank.

    `state` is that of its main thread, R if it was another one in the first look; `wchan` is the function of the kernel
    in which that thread waits. `held` has such a function for each thread that was in uninterruptible sleep (state D)
    all the time between the looks. `stacks` are those of its threads as faulthandler writes them, the main thread last.
    `same_stacks`: its main thread was in the same functions of the program in both looks, None if there was one look.
    `main_cpu` and `cpu` are the shares of a processor that its main thread and all of it used between the looks.

    `end`, of a rank's process that is gone: how it ended, as the probe saw it."""

    pid: int
    ppid: int
    start: int = 0
    namespace_pid: int = 0
    place: str = ""
    argv: Tuple[str, ...] = ()
    state: str = ""
    wchan: str = ""
    held: Tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    python: bool = False
    stacks: str = ""
    same_stacks: Optional[bool] = None
    main_cpu: float = 0.0
    cpu: float = 0.0
    end: str = ""


@dataclass(frozen=True)
class RecordedCollective:
    """The last collective, or message, that a rank has started, by torch's flight recorder: its `number` in the process
    `group`. `operation` as torch names it, `all_reduce` or `recv 0<-1` (places in the
    group). `state` is scheduled until its GPU comes to it, then started, if torch notes times; and completed."""

    rank: int
    operation: str
    number: int
    state: str = ""
    group: str = ""


@dataclass(frozen=True)
class HangFacts:
    """Everything that was seen, of a run or by `inspector` in one place; it took `seconds`. `lines` are those of the
    program that frames are at, by FILE:NUMBER. `ras` is NCCL's answer, by container. `could_not` has a line for each
    part that failed."""

    taken_at: float = 0.0
    reason: Reason = "request"
    request: str = ""
    seconds: float = 0.0
    processes: Tuple[ProcessFacts, ...] = ()
    gone: Tuple[ProcessFacts, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)
    ras: Mapping[str, str] = field(default_factory=dict)
    collectives: Tuple[RecordedCollective, ...] = ()
    could_not: Tuple[str, ...] = ()


class HangWatcher:
    """Looks after `silence` seconds without output, and before a timeout of `timeout` seconds."""

    def __init__(self, paths: run_directory.RunDir, silence: float, timeout: float) -> None:
        self._paths, self._silence = paths, silence
        self._before_timeout = BEFORE_TIMEOUT if timeout >= SHORTEST_TIMEOUT else 0.0
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._began, self._request, self._looks_at_silence = 0.0, "", 0

    @property
    def is_looking(self) -> bool:
        return self._process is not None

    def poll(self, silent: float, left: float) -> None:
        """With each heartbeat: end a look that takes too long, begin one that is due. The log is silent for `silent`
        seconds, `left` are those until the timeout. A silence is looked at again after twice and four times as long."""
        if self._process and (self._process.poll() is not None or time.monotonic() > self._began + MAX_SECONDS):
            self._end("no end within %.0f s" % MAX_SECONDS)
        if silent < self._silence:
            self._looks_at_silence = 0
        request = content_of(self._paths.hang_request, 101).decode("ascii", "replace")
        if self.is_looking:
            return
        if request != self._request and _is_request(request) and time.monotonic() > self._began + _PAUSE:
            self._request = request
            self._look("request", request)
        elif left < self._before_timeout:
            self._before_timeout = 0.0  # once
            self._look("timeout")
        elif silent >= self._silence * 2**self._looks_at_silence:
            self._looks_at_silence += 1
            self._look("stall")

    def close(self) -> None:
        """The job is over: nothing is left to be seen."""
        self._end("the run has ended")

    def _look(self, reason: Reason, request: str = "") -> None:
        argv = [sys.executable, "-I", "-S", self._paths.agent, "hang", self._paths.path, reason, request]
        null = subprocess.DEVNULL
        try:
            self._process = processes.start(argv, None, "/", stdin=null, stdout=null, stderr=null)
            self._began = time.monotonic()
        except OSError as error:
            self._log("could not start: %s" % error.strerror)

    def _end(self, why: str) -> None:
        """Forget the look; end it if it has not ended by itself. A failure of its own is logged by itself."""
        process, self._process = self._process, None
        code = process.poll() if process is not None else 0
        if process is not None and code is None:
            processes.end_program(process)
        if code != 0:
            self._log("failed: %s" % (why if code is None else "exit code %d" % code))

    def _log(self, what: str) -> None:
        log_traceback(self._paths.path, "hang", RuntimeError("inspecting the processes: %s" % what))


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
