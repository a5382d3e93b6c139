"""What is new of the runs that a client follows: log bytes from an offset, each new status, the end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Optional

from .. import files, liveness, run_directory
from ..records import Status
from . import frames
from .messages import FollowedRun, HostMessage, RunUpdate

if TYPE_CHECKING:  # a host without Slurm does not load it
    from ..slurm.session import SlurmRunState

_PACKED_FROM = 1 << 13  # bytes; what a job prints line by line is not worth the time
_SAMPLE = 1 << 21  # bytes, more than a pipe holds before its writer has to wait
_SLOW = 30e6  # bytes a second: by far less than zlib packs, and than a loop or a fast network takes
_ALIVE_POLL_SECONDS = 1.0  # between two reads of a status that seems to be the same
_SHARED_POLL_SECONDS = 0.5  # between two reads of the status of a run on another machine
_LOG_DELAY = 60.0  # seconds that the end of a log may come later than its status, on a file system that caches


class LinkSpeed:
    """Whether the link is slow, so that logs arrive sooner if they are packed."""

    def __init__(self) -> None:
        self.is_slow, self._bytes, self._seconds = False, 0, 0.0
        self._blocked_since: Optional[float] = None

    def add(self, count: int, is_blocked: bool) -> None:
        """So many bytes were written just now; `is_blocked`: the link takes no more at the moment."""
        now = time.monotonic()
        self._bytes += count
        self._seconds += now - self._blocked_since if self._blocked_since is not None else 0.0
        self._blocked_since = now if is_blocked else None
        if self._bytes >= _SAMPLE:
            self.is_slow = self._bytes < _SLOW * self._seconds
            self._bytes, self._seconds = 0, 0.0


class RunFollower:
    """A run as one client has it. `job` is its Slurm job: such a run is on another machine, over a shared file system,
    and its updates contain the state of the job. `is_starting` tells of a run without a status whether another
    connection starts it just now."""

    def __init__(
        self,
        followed: FollowedRun,
        send: Callable[[bytes], None],
        link: LinkSpeed,
        job: Optional[SlurmRunState] = None,
        is_starting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.key, self.over = followed.key, False
        self._run, self._offset = run_directory.RunDir(followed.dir), followed.offset
        self._send, self._link, self._job, self._is_starting = send, link, job, is_starting
        self._client = liveness.client_lock(followed.dir)
        self._log: Optional[BinaryIO] = None
        self._mtime: Optional[int] = None
        self._last: Any = None  # the sequence of the status that was sent last, or the status of a job
        self._last_check = self._opened = 0.0
        self._over_at: Optional[float] = None

    def poll(self) -> bool:
        """Send what is new. Returns whether the log grew."""
        # The status first: what the log has by the time an end is read is all that it will ever have.
        final = self._poll_job(self._job) if self._job else self._poll_status()
        grew = self._poll_log()
        if final is not None and not grew:
            self.over = True
            self.close()
            self._say(final)
        return grew

    def close(self) -> None:
        """The client follows it no more."""
        self._client.release()
        self._close_log()

    def _say(self, update: RunUpdate) -> None:
        self._send(frames.message(HostMessage(update=update)))

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _poll_log(self) -> bool:
        if self._log is None:
            try:
                self._log, self._opened = files.open_file(self._run.log), time.monotonic()
            except OSError:
                return False
        chunk = os.pread(self._log.fileno(), frames.MAX_UNPACKED, self._offset)
        if chunk:
            is_packed = len(chunk) >= _PACKED_FROM and self._link.is_slow
            self._send((frames.packed_log if is_packed else frames.log)(self.key, self._offset, chunk))
            self._offset += len(chunk)
        elif self._job and time.monotonic() - self._opened > _ALIVE_POLL_SECONDS:
            self._close_log()  # a file that another machine writes may grow unseen until it is opened again
        return bool(chunk)

    def _poll_status(self) -> Optional[RunUpdate]:
        """Send a new status. Returns the last update if the run is over."""
        now = time.monotonic()
        try:
            mtime = os.stat(self._run.status).st_mtime_ns
        except OSError:
            mtime = 0
        # Two writes may share one mtime: it only hints that there is something to read.
        if mtime == self._mtime and now - self._last_check < _ALIVE_POLL_SECONDS:
            return None
        self._mtime, self._last_check = mtime, now
        # Before the status is read: an agent writes the end, and then it ends itself. One that lives writes a status
        # again that its job took away.
        has_agent = liveness.is_held(self._run.path)
        if not (mtime or has_agent or self._is_starting() or os.path.lexists(self._run.status)):
            why = "there is no run %s on the host any more" % self._run.path
            return RunUpdate(self.key, over=True, code="missing", problem=why)
        status = run_directory.read_status(self._run) if has_agent else liveness.conclude(self._run)
        if status.has_ended:
            self._mtime = None  # it is read again, until the log is sent, or the agent has written it again
            return None if has_agent else self._end(status)
        if status.exists and status.sequence != self._last:
            self._last = status.sequence
            self._say(RunUpdate(self.key, status))
        return None

    def _poll_job(self, job: SlurmRunState) -> Optional[RunUpdate]:
        now = time.monotonic()
        if now - self._last_check < _SHARED_POLL_SECONDS:
            return None
        self._last_check = now
        status, over = job.join(run_directory.read_status(self._run))
        if over:
            self._over_at = self._over_at or now
            if self._offset >= status.log_bytes or now - self._over_at > _LOG_DELAY:
                self._last_check = 0.0  # it is read again, until the log is sent
                return self._end(status)
        elif status != self._last:
            self._last = status
            self._say(RunUpdate(self.key, status))
        return None

    def _end(self, status: Status) -> RunUpdate:
        return RunUpdate(self.key, status, over=True, gone=status.gone)
