"""Signals as a readable file descriptor, so that one wait serves the job's output, its end, and a request to stop."""

from __future__ import annotations

import os
import select
import signal
import time

# Blocked while a run starts: they arrive before it exists or after it handles them, never in between.
BLOCKED_AT_START = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalPipe:
    """`fd` becomes readable at every signal, the end of a child included; `stop_requested` after SIGTERM or SIGINT."""

    def __enter__(self) -> SignalPipe:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self.stop_requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        # A handler that does nothing, since an ignored signal stays ignored in the job, which CI's is not.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_START)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)

    def clear(self) -> None:
        """Make `fd` unreadable until the next signal."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass

    def wait_for_stop(self, seconds: float) -> bool:
        """Wait so long, or until a stop is requested, and return whether one is. No other signal ends it."""
        until = time.monotonic() + seconds
        while True:
            self.clear()
            left = until - time.monotonic()
            if self.stop_requested or left <= 0:
                return self.stop_requested
            select.select([self.fd], [], [], left)

    def _request_stop(self, _number: int, _frame: object) -> None:
        self.stop_requested = True


def _nothing(_number: int, _frame: object) -> None:
    pass
