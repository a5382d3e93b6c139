"""Whether the agent of a run lives, by what its job cannot forge: the kernel's lock on the run directory; the end of a
run whose agent could not write one, since it was killed, or its host restarted; and whether a client waits for it.

A job may write into status.json what it likes, but cannot take away its agent's lock. So a status says how a run ended
only when the lock is free; by then the agent has written its own. On a file system without `flock` the status alone has
to do.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Iterable, Optional

from . import processes, run_directory
from .files import is_locked, lock_within
from .records import Status
from .run_directory import RunDir

_AGENT_SECONDS = 5.0  # who tests the lock holds it for a moment; the agent writes its status every 2 seconds
_CLIENT_SECONDS = 1.0
_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_CLIENT_FLAGS = os.O_RDWR | os.O_NOFOLLOW
_MAY_BE_LEFT = "what it started was not looked for: `ci-tasks cancel` and `ci-tasks clean` end what they find"
_NOT_SEEN = "one that cleared its environment and left the job's process group is not seen without its agent"


class KeptLock(ExitStack):
    """A lock that is held until `close`, or until this process ends: no program that it starts inherits it. Who looks
    whether it is free holds it for a moment, so it is tried for `seconds`. Nothing where `path` cannot be opened."""

    def __init__(self, path: str, flags: int, seconds: float, exclusive: bool) -> None:
        super().__init__()
        with suppress(OSError):
            handle = os.open(path, flags | os.O_CLOEXEC)
            self.callback(os.close, handle)
            lock_within(handle, seconds, exclusive)


def agent_lock(run_dir: str) -> KeptLock:
    """The agent's own."""
    return KeptLock(run_dir, _FLAGS, _AGENT_SECONDS, exclusive=True)


def client_lock(run_dir: str) -> KeptLock:
    """That of a client which waits for a run that is of no use without one, as install steps are; several may. It is
    released however the client ends. Nothing if the run goes on without a client."""
    return KeptLock(RunDir(run_dir).client, _CLIENT_FLAGS, _CLIENT_SECONDS, exclusive=False)


class ClientDeadline:
    """When an agent cancels its run: `seconds` after the last moment at which a client waited for it; None: never."""

    def __init__(self, run_dir: str, seconds: Optional[float]) -> None:
        self._client, self._seconds = RunDir(run_dir).client, seconds
        self._last_seen = time.monotonic()

    def poll(self) -> bool:
        """Whether it has passed just now; only once."""
        if self._seconds is None:
            return False
        with suppress(OSError):  # without the file nothing tells of a client
            if is_locked(self._client, _CLIENT_FLAGS) is not False:  # nor does a file system without locks
                self._last_seen = time.monotonic()
                return False
        if time.monotonic() < self._last_seen + self._seconds:
            return False
        self._seconds = None
        return True


def is_held(run_dir: str) -> bool:
    try:
        return is_locked(run_dir, _FLAGS, exclusive=False) is True
    except OSError:
        return False


def is_alive(run: RunDir, status: Status) -> bool:
    """Whether the agent of a run of this host lives; `status` is what its status.json says."""
    return is_held(run.path) or (not status.has_ended and processes.alive(status))


def conclude(run: RunDir) -> Status:
    """The status of a run of this host. If its agent died without an end, status.json says so from now on. Raises
    OSError."""
    status = _read(run)
    if not is_alive(run, status):
        status = _read(run)  # it may have ended meanwhile
        if not status.has_ended and os.path.lexists(run.status) and not os.path.islink(run.path):  # a job's link
            return _write(run, _lost(status))
    return status


def record_cleanup(run: RunDir, ended: int, left: Iterable[str]) -> None:
    """Add to the status of a lost run what was ended of it, and what is left."""
    status = conclude(run)
    if status.gone:
        found = "%d of its processes %s ended" % (ended, "was" if ended == 1 else "were")
        _write(run, replace(status, error="; ".join([status.error or "", found, _NOT_SEEN]), left=tuple(left)))


def _read(run: RunDir) -> Status:
    try:
        return run_directory.read_status(run)
    except ValueError:  # a job has written something else; a disk may answer the next time
        return Status()


def _lost(status: Status) -> Status:
    restarted = status.boot_id not in (None, processes.boot_id())
    seen = status.heartbeat_at
    last = time.strftime(" (last heartbeat %Y-%m-%d %H:%M:%S UTC)", time.gmtime(seen)) if seen else ""
    return replace(
        status,
        state="ended",
        phase="ended",
        waiting=(),
        ended_at=seen,
        error="%s before the job ended%s" % ("the host restarted" if restarted else "the agent died", last),
        left=(_MAY_BE_LEFT,),
        gone=True,
    )


def _write(run: RunDir, status: Status) -> Status:
    status = replace(status, sequence=status.sequence + 1)
    with suppress(OSError):  # a full disk, a directory of another user
        run_directory.write_record(run.status, status)
    return status
