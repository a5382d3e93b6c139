"""Telling a client what becomes of the runs that it watches: log bytes by offset, each new status, the end."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, Optional

from .. import layout, process
from . import frames

GLANCE = 0.02  # seconds between two looks at the runs
QUICK = 0.004  # the same where a log has just grown: more of it is likely to come
_RECENT = 0.5
BEAT = 2.0  # seconds after which the client hears that the host lives
_CHUNK = 1 << 18
_ALIVE = 1.0  # seconds between two looks at a runner's life
_LATE = 60.0  # seconds that the end of a log may come later than its status, on a file system that caches
_SHARED = 0.5  # seconds between two looks at the status of a run on another machine


class Tail(threading.Thread):
    """Sends frames through `send` until the process ends; `send` may block for as long as the client is slow."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__(daemon=True)
        self._send = send
        self._watched: Dict[int, _Watched] = {}
        self._change = threading.Lock()

    def watch(self, key: int, run_dir: str, offset: int, job: Optional[Any] = None) -> None:
        """`job`: how it stands with Slurm, for a run that is a job of it: see ci_tasks.runner.slurm.look.Look."""
        with self._change:
            self._watched[key] = _Watched(key, run_dir, offset) if job is None else _OnNode(key, run_dir, offset, job)

    def forget(self, key: int) -> None:
        with self._change:
            self._watched.pop(key, None)

    def run(self) -> None:
        beaten = told = time.monotonic()
        try:
            while True:
                with self._change:
                    watched = list(self._watched.values())
                busy = False
                for one in watched:
                    busy = self._tell(one) or busy
                    if one.over:
                        self._leave(one)
                if time.monotonic() - beaten > BEAT:
                    beaten = time.monotonic()
                    self._say(frames.frame(frames.BEAT))
                if busy:
                    told = time.monotonic()
                else:
                    time.sleep(QUICK if time.monotonic() - told < _RECENT else GLANCE)
        except _Gone:  # what it watched goes on
            return

    def _tell(self, one: _Watched) -> bool:
        try:
            return one.tell(self._say)
        except (OSError, ValueError):  # a file that cannot be read just now; the next look may
            return False

    def _say(self, data: bytes) -> None:
        try:
            self._send(data)
        except OSError as error:
            raise _Gone from error

    def _leave(self, one: _Watched) -> None:
        """It is over; but by now the client may have asked for it once more, under the same key."""
        with self._change:
            if self._watched.get(one.key) is one:
                del self._watched[one.key]


class _Gone(Exception):
    """The client is."""


class _Watched:
    def __init__(self, key: int, run_dir: str, offset: int) -> None:
        self.key, self.over = key, False
        self._paths = layout.RunDir(run_dir)
        self._offset = offset
        self._log: Optional[int] = None
        self._stamp: Optional[int] = None
        self._looked = 0.0

    def tell(self, send: Callable[[bytes], None]) -> bool:
        """Send what is new; whether there was any log."""
        # The status first: what the log has by the time an end is read is all that it will ever have.
        status, gone = self._news(send)
        told = self._tell_log(send)
        if not told and status is not None and (gone or status.get("state") == layout.STATE_ENDED):
            self.over = True
            if self._log is not None:
                os.close(self._log)
            send(frames.message({"key": self.key, "over": True, "gone": gone, "status": status}))
        return told

    def _tell_log(self, send: Callable[[bytes], None]) -> bool:
        if self._log is None:
            try:
                self._log = os.open(self._paths.log, os.O_RDONLY)
            except OSError:
                return False
        chunk = os.pread(self._log, _CHUNK, self._offset)
        if chunk:
            send(frames.log(self.key, self._offset, chunk))
            self._offset += len(chunk)
        return bool(chunk)

    def _news(self, send: Callable[[bytes], None]) -> "tuple[Optional[Dict[str, Any]], bool]":
        """The status where the run may be over, and whether its runner is gone without having said so."""
        try:
            stamp = os.stat(self._paths.status).st_mtime_ns
        except OSError:
            stamp = 0
        if stamp != self._stamp:
            self._stamp = stamp
            status = layout.read_json(self._paths.status)
            if status.get("state") == layout.STATE_ENDED:
                self._stamp = None  # so that it is read again, until the log is told
                return status, False
            send(frames.message({"key": self.key, "status": status}))
            return None, False
        if time.monotonic() - self._looked < _ALIVE:
            return None, False
        self._looked = time.monotonic()
        status = layout.read_json(self._paths.status)
        if status.get("state") == layout.STATE_ENDED or process.alive(status):
            return None, False
        status = layout.read_json(self._paths.status)  # it may have ended between the two looks
        self._looked = 0.0
        return status, status.get("state") != layout.STATE_ENDED


class _OnNode(_Watched):
    """A run of another machine, on a file system that both share. What is known of its job is told with its status."""

    def __init__(self, key: int, run_dir: str, offset: int, job: Any) -> None:
        super().__init__(key, run_dir, offset)
        self._job = job
        self._told: Dict[str, Any] = {}
        self._opened = 0.0
        self._over_at: Optional[float] = None

    def _tell_log(self, send: Callable[[bytes], None]) -> bool:
        told = super()._tell_log(send)
        if not told and self._log is not None and time.monotonic() - self._opened > _ALIVE:
            # A file that another machine writes may grow unseen until it is opened anew.
            os.close(self._log)
            self._log, self._opened = None, time.monotonic()
        return told

    def _news(self, send: Callable[[bytes], None]) -> "tuple[Optional[Dict[str, Any]], bool]":
        if time.monotonic() - self._looked < _SHARED:
            return None, False
        self._looked = time.monotonic()
        status, over = self._job.told(layout.read_json(self._paths.status))
        if over and not self._is_late(status):
            self._looked = 0.0  # so that it is read again, until the log is told
            return status, False
        if not over and status != self._told:
            self._told = status
            send(frames.message({"key": self.key, "status": status}))
        return None, False

    def _is_late(self, status: Dict[str, Any]) -> bool:
        """Whether the status is here, and the log that it speaks of is not yet."""
        now = time.monotonic()
        self._over_at = now if self._over_at is None else self._over_at
        return self._offset < (status.get("log_bytes") or 0) and now - self._over_at < _LATE
