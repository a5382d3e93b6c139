"""How a host is reached: its user gets a plain socket to a command that runs there."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import threading
from typing import Any, Protocol

from ci_tasks.agent.serving import protocol
from ci_tasks.errors import Blocked

_CHUNK = 1 << 18
_END_S = 5.0  # for commands of this machine to end with their sockets, and for a server to repeat a goodbye


class LinkDied(Blocked):
    """The connection is gone, or the command at its end. What runs on the host may well go on."""


class HostKeyRefused(Blocked):
    """The server at the other end is not shown to be the one that was meant."""


class Transport(Protocol):
    """`python` starts the agent. `is_server_running`: an earlier client left the command of the last socket running."""

    python: str
    is_server_running: bool

    def open(self, command: str) -> socket.socket:
        """Start a command in the host's login shell; what it writes, errors too, comes through the socket. Raises
        LinkDied, Blocked, UsageError."""
        ...

    def close(self) -> None:
        """Never blocks for long, however the connection is."""
        ...


def relay(client: socket.socket, channel: Any) -> bool:
    """Copy both ways between a socket and a channel (`recv`, `sendall`, `close`) until either has ended. Whether the
    server at the other end can serve another client: this one left with a goodbye, which the server has repeated. Else
    the channel is closed."""
    sent = said = b""  # the last bytes to the server, and from it
    has_left = threading.Event()

    def up() -> None:
        nonlocal sent
        with contextlib.suppress(Exception):
            while chunk := client.recv(_CHUNK):
                sent = (sent + chunk)[-protocol.GOODBYE_BYTES :]
                channel.sendall(chunk)
        with contextlib.suppress(Exception):
            if not (sent.startswith(protocol.GOODBYE_HEAD) and has_left.wait(_END_S)):
                channel.close()

    threading.Thread(target=up, daemon=True, name="ci-tasks relay").start()
    with contextlib.suppress(OSError, EOFError):  # the connection has gone
        while not has_left.is_set() and (chunk := channel.recv(_CHUNK)):
            said = (said + chunk)[-protocol.GOODBYE_BYTES :]
            if said == sent and said.startswith(protocol.GOODBYE_HEAD):
                has_left.set()
            with contextlib.suppress(OSError):  # the client has gone; what it sent before is still on its way up
                client.sendall(chunk)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
    if not has_left.is_set():
        with contextlib.suppress(Exception):
            channel.close()
    client.close()
    return has_left.is_set()


class LocalTransport:
    """Commands of this machine, each in a session of its own: ^C is not for them. They end with their socket."""

    is_server_running, python = False, shlex.quote(sys.executable)

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self, command: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            end, shell = theirs.fileno(), ["/bin/sh", "-c", command]
            self._processes.append(subprocess.Popen(shell, stdin=end, stdout=end, stderr=end, start_new_session=True))
        return ours

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
