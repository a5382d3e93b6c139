"""What is new of the runs that a client watches: log bytes from an offset, each new status, the end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Callable, Optional

from .. import liveness, run_directory
from ..cleanup.lost_run import conclude
from ..client_watch import ClientWatch
from ..records import Status
from . import frames
from .messages import HostMessage, RunUpdate

if TYPE_CHECKING:  # a host without Slurm does not load it
    from ..slurm.run_state import SlurmRunState

_CHUNK = frames.MAX_UNPACKED
_PACKED_FROM = 1 << 13  # bytes; what a job prints line by line is not worth the time
_SAMPLE = 1 << 20  # bytes, more than a pipe holds before whoever sends has to wait
_SLOW = 30e6  # bytes a second: by far less than zlib packs, and than a loop or a fast network takes
_ALIVE_POLL_SECONDS = 1.0  # between two reads of a status that seems to be the same
_SHARED_POLL_SECONDS = 0.5  # between two reads of the status of a run on another machine
_LOG_DELAY = 60.0  # seconds that the end of a log may come later than its status, on a file system that caches

Send = Callable[[Any], None]


class LinkSpeed:
    """Whether the link is slow, so that logs get there sooner if they are packed. Once it was, it remains so."""

    def __init__(self) -> None:
        self.is_slow = self._last_was_slow = False
        self._bytes, self._seconds = 0, 0.0
        self._blocked_since: Optional[float] = None

    def add(self, count: int, is_blocked: bool) -> None:
        """So many bytes were written just now; `is_blocked`: the link takes no more at the moment."""
        now = time.monotonic()
        self._bytes += count
        if self._blocked_since is not None:
            self._seconds += now - self._blocked_since
        self._blocked_since = now if is_blocked else None
        if self._bytes >= _SAMPLE:
            was_slow, self._last_was_slow = self._last_was_slow, self._bytes < _SLOW * self._seconds
            self.is_slow = self.is_slow or (was_slow and self._last_was_slow)  # a client may pause once
            self._bytes, self._seconds = 0, 0.0


def watched_run(key: int, run_dir: str, offset: int, link: LinkSpeed, job: Optional[SlurmRunState]) -> WatchedRun:
    """`job` is the Slurm job of a run that has one."""
    return WatchedJob(key, run_dir, offset, link, job) if job else WatchedRun(key, run_dir, offset, link)


class WatchedRun:
    """A run as one client has it."""

    def __init__(self, key: int, run_dir: str, offset: int, link: LinkSpeed) -> None:
        self.key, self.over = key, False
        self._paths = run_directory.RunDir(run_dir)
        self._client = ClientWatch(run_dir)
        self._offset, self._link = offset, link
        self._buffer = frames.LogBuffer(_CHUNK)
        self._log: Optional[int] = None
        self._mtime: Optional[int] = None
        self._sequence: Optional[int] = None
        self._last_check = 0.0

    def poll(self, send: Send) -> bool:
        """Send what is new. Returns whether the log grew."""
        # The status first: what the log has by the time an end is read is all that it will ever have.
        final = self._poll_status(send)
        grew = self._poll_log(send)
        if not grew and final is not None and final.has_ended:
            self.over = True
            self.close()
            self._update(send, RunUpdate(self.key, final, over=True, gone=final.gone))
        return grew

    def close(self) -> None:
        """Nobody watches it any more."""
        self._client.release()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _update(self, send: Send, update: RunUpdate) -> None:
        send(frames.message(HostMessage(update=update)))

    def _poll_log(self, send: Send) -> bool:
        if self._log is None:
            try:
                self._log = os.open(self._paths.log, os.O_RDONLY)
            except OSError:
                return False
        count = os.preadv(self._log, [self._buffer.chunk], self._offset)
        if count:
            self._send_log(send, count)
            self._offset += count
        return count > 0

    def _send_log(self, send: Send, count: int) -> None:
        frame: Any = self._buffer.frame(self.key, self._offset, count)
        if count >= _PACKED_FROM and self._link.is_slow:
            packed = frames.packed_log(self.key, self._offset, self._buffer.chunk[:count])
            frame = packed if len(packed) < count else frame
        send(frame)

    def _poll_status(self, send: Send) -> Optional[Status]:
        """Send a new status. Returns the status where the run is over."""
        now, mtime = time.monotonic(), self._status_mtime()
        # Two writes may share one mtime: it only hints that there is something to read.
        if mtime == self._mtime and now - self._last_check < _ALIVE_POLL_SECONDS:
            return None
        self._mtime, self._last_check = mtime, now
        # Before the status is read: an agent writes the end, and then it ends itself.
        has_agent = liveness.is_held(self._paths.path)
        status = run_directory.read_status(self._paths) if has_agent else conclude(self._paths)
        if status.has_ended:
            self._mtime = None  # so that it is read again, until the log is sent, or the agent has written it again
            return None if has_agent else status
        if status.sequence != self._sequence:
            self._sequence = status.sequence
            self._update(send, RunUpdate(self.key, status))
        return None

    def _status_mtime(self) -> int:
        try:
            return os.stat(self._paths.status).st_mtime_ns
        except OSError:
            return 0


class WatchedJob(WatchedRun):
    """A run on another machine, over a shared file system. Its updates contain the state of its Slurm job."""

    def __init__(self, key: int, run_dir: str, offset: int, link: LinkSpeed, job: SlurmRunState) -> None:
        super().__init__(key, run_dir, offset, link)
        self._job = job
        self._last_status = Status()
        self._reopened = 0.0
        self._over_at: Optional[float] = None

    def _poll_log(self, send: Send) -> bool:
        grew = super()._poll_log(send)
        if not grew and self._log is not None and time.monotonic() - self._reopened > _ALIVE_POLL_SECONDS:
            # A file that another machine writes may grow unseen until it is opened anew.
            os.close(self._log)
            self._log, self._reopened = None, time.monotonic()
        return grew

    def _poll_status(self, send: Send) -> Optional[Status]:
        if time.monotonic() - self._last_check < _SHARED_POLL_SECONDS:
            return None
        self._last_check = time.monotonic()
        status, over = self._job.join(run_directory.read_status(self._paths))
        if over and not self._is_log_delayed(status):
            self._last_check = 0.0  # so that it is read again, until the log is sent
            return status
        if not over and status != self._last_status:
            self._last_status = status
            self._update(send, RunUpdate(self.key, status))
        return None

    def _is_log_delayed(self, status: Status) -> bool:
        """Whether the log here is still shorter than its status says."""
        now = time.monotonic()
        self._over_at = now if self._over_at is None else self._over_at
        return self._offset < status.log_bytes and now - self._over_at < _LOG_DELAY
