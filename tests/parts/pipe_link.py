"""Links to processes of this machine: what a connection over SSH does, without a server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable


class PipeLink:
    """A command, in a session of its own, and the socket that leads to it."""

    def __init__(self, environ: dict[str, str] | None = None, user: int | None = None) -> None:
        self._environ, self._user = environ, user
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def open(self, command: str) -> socket.socket:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                env=self._environ,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
                start_new_session=True,
                user=self._user,
            )
        return self._socket

    def cut(self) -> None:
        """As if the link had died: its command ends, and so do its bytes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def hang_up(self) -> None:
        """The command goes on, without its client."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        if self._process is not None:
            self._process.wait(20)


class LinkTransport:
    """A Transport: each command goes over a link of its own."""

    is_server_running, python = False, "python3"

    def __init__(self, connect: Callable[[], PipeLink]) -> None:
        self._connect = connect
        self._links: list[PipeLink] = []

    def open(self, command: str) -> socket.socket:
        self._links.append(self._connect())
        return self._links[-1].open(command)

    def close(self) -> None:
        for link in self._links:
            link.close()
