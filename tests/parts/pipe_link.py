"""A Link whose commands are processes of this machine: what a connection over SSH does, without a server."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from typing import IO

from ci_tasks.executors.link import LinkDied, StderrTail

_SLICE = 0.2  # seconds after which a waiting reader checks whether the stream was closed
_STATUS_WAIT = 5.0


class PipeLink:
    """Commands as processes of this machine, each in a session of its own, with `environ` as their environment."""

    def __init__(
        self,
        environ: dict[str, str] | None = None,
        description: str = "this machine, through a pipe",
        user: int | None = None,
    ) -> None:
        self.description = description
        self._environ, self._user = environ, user
        self._streams: list[PipeStream] = []
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    def open(self, command: str) -> PipeStream:
        if self._closed:
            raise LinkDied(f"{self.description}: the link is closed")
        stream = PipeStream(command, self._environ, self._user)
        self._streams.append(stream)
        return stream

    def interactive(self, command: str) -> int:
        raise AssertionError("no terminal is needed here")

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

    def __init__(self, command: str, environ: dict[str, str] | None, user: int | None = None) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            user=user,
        )
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self._tail = StderrTail(self._process.stderr.read, self._process.stderr.close)
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
