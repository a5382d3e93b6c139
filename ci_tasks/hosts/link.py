"""What is asked of a connection to a host, whatever carries it: streams to commands there, and word of its death.

`PipeLink` carries them to this machine, as processes of its own; `ci_tasks.hosts.ssh` carries them to another one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO, Protocol

from ci_tasks.errors import Blocked

STDERR_KEPT = 4096
_SLICE = 0.2  # seconds after which one who waits looks whether the stream was closed
_STATUS_WAIT = 5.0


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


class Tail:
    """Reads a pipe to its end in a thread of its own and keeps the last of it; closes it then."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None] | None = None) -> None:
        self._kept = b""
        self._close = close
        self._ended = threading.Event()
        threading.Thread(target=self._drain, args=(read,), daemon=True, name="ci-tasks stderr").start()

    def last(self) -> bytes:
        """Where the command has ended, all of its last words: they may be a moment behind its output."""
        self._ended.wait(_SLICE)
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


class PipeLink:
    """Commands as processes of this machine, each in a session of its own, with `environ` as their environment."""

    def __init__(
        self, environ: dict[str, str] | None = None, description: str = "this machine, through a pipe"
    ) -> None:
        self.description = description
        self._environ = environ
        self._streams: list[PipeStream] = []
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    def open(self, command: str) -> PipeStream:
        if self._closed:
            raise LinkDied(f"{self.description}: the link is closed")
        stream = PipeStream(command, self._environ)
        self._streams.append(stream)
        return stream

    def interactive(self, command: str) -> int:
        return subprocess.run(["/bin/sh", "-c", command], env=self._environ, check=False).returncode

    def cut(self) -> None:
        """As if the link had died: everything on it fails from now on."""
        self._closed = True
        for stream in self._streams:
            stream.die()

    def close(self) -> None:
        self._closed = True
        for stream in self._streams:
            stream.close()


class PipeStream:
    """One process of a PipeLink."""

    def __init__(self, command: str, environ: dict[str, str] | None) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self._tail = Tail(self._process.stderr.read, self._process.stderr.close)
        self._reading = threading.Lock()
        self._timeout: float | None = None
        self._closed = self._dead = False

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._in.write(view) :]
        except (OSError, ValueError) as error:
            raise LinkDied(f"the command takes no more input ({error})") from error

    def recv(self, n: int) -> bytes:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        with self._reading:
            while not self._closed and not self._dead:
                wait = _SLICE if until is None else min(_SLICE, until - time.monotonic())
                if select.select([self._out], [], [], max(wait, 0))[0]:
                    chunk = os.read(self._out.fileno(), n)
                    if chunk or not self._dead:
                        return chunk
                elif until is not None and time.monotonic() >= until:
                    raise TimeoutError(f"nothing within {self._timeout:g} s")
        if self._dead:
            raise LinkDied("the link was cut")
        return b""

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def stderr_tail(self) -> bytes:
        return self._tail.last()

    def shut_write(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()

    def exit_status(self) -> int | None:
        try:
            code = self._process.wait(_STATUS_WAIT)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else None

    def die(self) -> None:
        self._dead = True
        self._kill()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._kill()
        self.shut_write()
        if self._reading.acquire(timeout=5 * _SLICE):
            self._out.close()
            self._reading.release()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
