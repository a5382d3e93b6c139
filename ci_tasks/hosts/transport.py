"""How a host is reached: who talks to it gets a plain socket to a command that runs there."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
from typing import Any, Protocol

from ci_tasks.errors import Blocked

_CHUNK = 1 << 18
_END_S = 5.0


class LinkDied(Blocked):
    """The connection is gone, or the command at its end. What runs on the host may well go on."""


class Transport(Protocol):
    python: str  # what starts the agent

    @property
    def is_server_running(self) -> bool:
        """Whether the command of the last socket runs already, left by an earlier client."""
        ...

    def open(self, command: str) -> socket.socket:
        """Begin a command in the host's login shell; what it writes, errors too, comes through the socket. Raises
        LinkDied, Blocked, UsageError."""
        ...

    def close(self) -> None:
        """Never blocks, however the connection is."""
        ...


def relay(sock: socket.socket, channel: Any) -> None:
    """Copy both ways between a socket and a channel (`recv`, `sendall`, `close`) until either has ended."""
    import threading

    def up() -> None:
        with contextlib.suppress(Exception):
            while chunk := sock.recv(_CHUNK):
                channel.sendall(chunk)
        with contextlib.suppress(Exception):
            channel.close()

    threading.Thread(target=up, daemon=True, name="ci-tasks relay").start()
    has_gone = False
    try:
        while chunk := channel.recv(_CHUNK):
            try:
                if not has_gone:
                    sock.sendall(chunk)
            except OSError:
                has_gone = True  # what the client has sent before is still on its way up
    except (OSError, EOFError):  # the connection has gone
        pass
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            channel.close()
        sock.close()


class LocalTransport:
    """Commands of this machine, each in a session of its own: ^C is not for them. They end with their socket."""

    is_server_running, python = False, shlex.quote(sys.executable)

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self, command: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", command],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=theirs.fileno(),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise Blocked(f"the agent cannot be started: {error.strerror}") from None
        self._processes.append(process)
        return ours

    def close(self) -> None:
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.returncode = 0  # it ends by itself: no wait and no warning
