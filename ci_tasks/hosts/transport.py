"""How a host is reached: its user gets a plain socket to a command that runs there."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import threading
from typing import Any, Protocol

from ci_tasks.errors import Blocked

_CHUNK = 1 << 18
_END_S = 5.0  # for commands of this machine to end with their sockets


class LinkDied(Blocked):
    """The connection is gone, or the command at its end. What runs on the host may well go on."""


class Transport(Protocol):
    """`python` starts the agent. `is_server_running`: an earlier client left the command of the last socket running."""

    python: str

    @property
    def is_server_running(self) -> bool: ...

    def open(self, command: str) -> socket.socket:
        """Start a command in the host's login shell; what it writes, errors too, comes through the socket. Raises
        LinkDied, Blocked, UsageError."""
        ...

    def close(self) -> None:
        """Never blocks for long, however the connection is."""
        ...


def relay(sock: socket.socket, channel: Any) -> None:
    """Copy both ways between a socket and a channel (`recv`, `sendall`, `close`) until either has ended."""

    def up() -> None:
        with contextlib.suppress(Exception):
            while chunk := sock.recv(_CHUNK):
                channel.sendall(chunk)
        with contextlib.suppress(Exception):
            channel.close()

    threading.Thread(target=up, daemon=True, name="ci-tasks relay").start()
    with contextlib.suppress(OSError, EOFError):  # the connection has gone
        while chunk := channel.recv(_CHUNK):
            with contextlib.suppress(OSError):  # the client has gone; what it sent before is still on its way up
                sock.sendall(chunk)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(Exception):
        channel.close()
    sock.close()


class LocalTransport:
    """Commands of this machine, each in a session of its own: ^C is not for them. They end with their socket."""

    is_server_running, python = False, shlex.quote(sys.executable)

    def __init__(self) -> None:
        self._waiting: list[threading.Thread] = []

    def open(self, command: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                end, shell = theirs.fileno(), ["/bin/sh", "-c", command]
                process = subprocess.Popen(shell, stdin=end, stdout=end, stderr=end, start_new_session=True)
            except OSError as error:
                ours.close()
                raise Blocked(f"the agent cannot be started: {error.strerror}") from None
        self._waiting.append(threading.Thread(target=process.wait, daemon=True, name="ci-tasks agent"))
        self._waiting[-1].start()
        return ours

    def close(self) -> None:
        for thread in self._waiting:
            thread.join(_END_S)
