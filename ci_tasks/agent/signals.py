"""Signals as a readable file descriptor, so that one wait serves the job's output, its end, and a request to stop."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

# Blocked while a run starts: they arrive before it exists or after it handles them, never in between.
BLOCKED_AT_START = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalPipe:
    """`fd` becomes readable at every signal, the end of a child included; `stop_requested` after SIGTERM or SIGINT."""

    def __enter__(self) -> SignalPipe:
        self.fd, self._write = os.pipe()
        self.stop_requested = False
        # Each has a handler, since an ignored signal stays ignored in the job, which CI's is not.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._handle)
        for end in (self.fd, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_START)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)

    def clear(self) -> None:
        """Make `fd` unreadable until the next signal."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass

    def wait(self, seconds: float) -> None:
        """Wait so long, or until any signal."""
        select.select([self.fd], [], [], max(0.0, seconds))
        self.clear()

    def _handle(self, number: int, _frame: object) -> None:
        self.stop_requested = self.stop_requested or number in (signal.SIGTERM, signal.SIGINT)
