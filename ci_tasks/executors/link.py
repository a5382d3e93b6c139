"""The interface of a connection to a host: streams to commands there, and the error of its death."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from ci_tasks.errors import Blocked

STDERR_KEPT = 4096
_QUIET_S = 1.0  # without a word of it, what still holds a standard error says nothing about the end of the command
_LAST_WORDS_S = 10.0  # to wait for the end of one that goes on, as a background process's may for ever


class LinkDied(Blocked):
    """The connection is gone, or what listened at its end. What runs on the host may well go on."""


class Stream(Protocol):
    """One command on the host: its standard input, output and end. Reader and writer may be two threads."""

    def send(self, data: bytes) -> None:
        """All of it. Raises LinkDied, also where the command has ended."""

    def recv(self, n: int) -> bytes:
        """Up to `n` bytes, none at the end. Raises LinkDied for a dead link, TimeoutError as `settimeout` says."""

    def settimeout(self, seconds: float | None) -> None:
        """How long `recv` may wait."""

    def stderr_tail(self) -> bytes:
        """The last of what the command wrote to its standard error, which never blocks it."""

    def shut_write(self) -> None:
        """The command's standard input ends."""

    def exit_status(self) -> int | None:
        """After the end of the output; None where the host did not say, as after a signal."""

    def close(self) -> None:
        """Never blocks."""


class Link(Protocol):
    @property
    def description(self) -> str:
        """For people: where it leads."""

    @property
    def alive(self) -> bool: ...

    def open(self, command: str) -> Stream:
        """Begin a command in the host's login shell. Raises LinkDied, Blocked."""

    def interactive(self, command: str) -> int:
        """Give our terminal to a command on the host; its exit code. Raises LinkDied."""

    def close(self) -> None:
        """Never blocks, however the link is."""


class StderrTail:
    """Reads a pipe to its end in a thread of its own and keeps the last of it; closes it then."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None] | None = None) -> None:
        self._kept = b""
        self._close = close
        self._ended = threading.Event()
        threading.Thread(target=self._drain, args=(read,), daemon=True, name="ci-tasks stderr").start()

    def last(self) -> bytes:
        """Where the command has ended, all of its last words: they may be some megabytes behind its output."""
        deadline = time.monotonic() + _LAST_WORDS_S
        seen = self._kept
        while not self._ended.wait(_QUIET_S) and self._kept is not seen and time.monotonic() < deadline:
            seen = self._kept
        return self._kept

    def _drain(self, read: Callable[[int], bytes]) -> None:
        try:
            while chunk := read(1 << 16):
                self._kept = (self._kept + chunk)[-STDERR_KEPT:]
        except (OSError, ValueError):
            pass
        finally:
            if self._close is not None:
                self._close()
            self._ended.set()
