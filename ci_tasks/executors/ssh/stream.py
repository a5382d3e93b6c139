"""One command over an SSH channel: all of what is sent, what comes at the full rate, and how it came to its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ci_tasks import debug_log
from ci_tasks.executors.link import LinkDied, StderrTail

_STATUS_WAIT = 5.0
_CLOSE_WAIT = 0.5
_CHUNK = 1 << 15


class Owner(Protocol):
    """What a stream knows of its link."""

    description: str

    @property
    def alive(self) -> bool: ...

    def is_still_alive(self) -> bool: ...

    def died_error(self) -> LinkDied: ...


class SSHStream:
    """One channel with a command."""

    def __init__(self, link: Owner, channel: Any) -> None:
        self._link, self._channel = link, channel
        self._tail = StderrTail(_without_timeout(channel.recv_stderr))
        self._closed = False

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                sent = self._channel.send(bytes(view[:_CHUNK]))
            except TimeoutError:
                continue  # the timeout is for recv
            except (OSError, EOFError, _ssh_exception()) as error:
                raise self._failed() from error
            if sent == 0:
                raise self._failed()
            view = view[sent:]
        if not self._link.alive:
            raise self._link.died_error()

    def recv(self, n: int) -> bytes:
        try:
            chunk: bytes = self._channel.recv(n)
        except TimeoutError:
            raise TimeoutError(f"nothing within {self._channel.gettimeout():g} s") from None
        except (OSError, EOFError, _ssh_exception()) as error:
            raise self._failed() from error
        # The channel of a dead link ends like any other, but nobody said so.
        if not chunk and not self._closed and not self._channel.eof_received and not self._link.is_still_alive():
            raise self._link.died_error()
        return chunk

    def settimeout(self, seconds: float | None) -> None:
        self._channel.settimeout(seconds)

    def stderr_tail(self) -> bytes:
        return self._tail.last()

    def shut_write(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def exit_status(self) -> int | None:
        self._channel.status_event.wait(_STATUS_WAIT)
        code: int = self._channel.exit_status
        return code if code >= 0 else None

    def close(self) -> None:
        self._closed = True
        # Its farewell has to be written to the socket, which takes nothing where the link is dead.
        farewell = threading.Thread(target=_quietly(self._channel.close), daemon=True, name="ci-tasks close")
        farewell.start()
        farewell.join(_CLOSE_WAIT)

    def _failed(self) -> LinkDied:
        if self._link.is_still_alive():
            return LinkDied(f"{self._link.description}: the command there has ended")
        return self._link.died_error()


def _ssh_exception() -> type[Exception]:
    from paramiko import SSHException

    return SSHException


def _without_timeout(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def patient(n: int) -> bytes:
        while True:
            with contextlib.suppress(TimeoutError):
                return read(n)

    return patient


def _quietly(do: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with debug_log.ignored("closing a channel"):
            do()

    return run
