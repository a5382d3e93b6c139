"""The process that keeps a connection. It connects when the first command asks for a channel, opens one for each
command of the same user, copies bytes both ways, and ends when no command has used it for IDLE_S.

The agent's server that a command leaves is held for the next one. A connection that died, or that was idle for a while
and does not answer, is made again first. Nothing is written anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ci_tasks.agent.serving import frames
from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.hosts.mux import HELD, LONGEST, PATIENCE_S, READY, REFUSED, WAIT, socket_path
from ci_tasks.hosts.ssh.connection import SSHConnection
from ci_tasks.hosts.transport import relay

IDLE_S = 600.0
_TICK_S = 1.0
_CREDENTIALS = struct.Struct("3i")
_CHUNK = 1 << 18
_TRUST_S = 10.0  # a connection that was idle for longer is tried before it is used


class MuxProcess:
    """Serves the clients of one socket."""

    def __init__(
        self, listener: socket.socket, address: str, connection: SSHConnection, idle_s: float = IDLE_S
    ) -> None:
        self._listener, self._address, self._connection, self._idle_s = listener, address, connection, idle_s
        self._path = Path(listener.getsockname())
        self._inode = self._path.stat().st_ino
        self._lock = threading.Lock()
        self._commands, self._last_used = 0, time.monotonic()
        self._is_over = False
        self._held: dict[str, _Server] = {}  # by the command that started it

    def serve(self) -> None:
        """Until no command has needed it for a while, or one ends it. The socket's file goes with it."""
        while not self._is_over and (self._commands or (self._is_wanted() and self._seconds_left() > 0)):
            if select.select([self._listener], [], [], _TICK_S)[0]:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()
        if self._is_wanted():
            self._path.unlink(missing_ok=True)
        self._listener.close()
        self._connection.close()

    def _is_wanted(self) -> bool:
        """Whether its socket is still there, and not another process's."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_ino == self._inode
        return False

    def _seconds_left(self) -> float:
        return max(0.0, self._last_used + self._idle_s - time.monotonic())

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(PATIENCE_S)
            request = json.loads(client.makefile("rb").readline(LONGEST)) if is_ours(client) else {}
            if "open" in request:
                self._count(1)
                try:
                    self._open(client, str(request["open"]))
                finally:
                    self._count(-1)
                return
            if "end" in request:
                self._is_over = True
                self._path.unlink(missing_ok=True)  # from now on no command finds it
            status = {"address": self._address, "pid": os.getpid(), "is_up": self._connection.is_up}
            left = 0.0 if self._commands else self._seconds_left()
            client.sendall(READY + json.dumps({**status, "commands": self._commands, "seconds_left": left}).encode())

    def _count(self, step: int) -> None:
        with self._lock:
            self._commands += step
            self._last_used = time.monotonic()

    def _open(self, client: socket.socket, command: str) -> None:
        made: list[Any] = []
        making = threading.Thread(target=self._make, args=(command, made), daemon=True)
        making.start()
        making.join(_TICK_S)
        while making.is_alive():
            client.sendall(WAIT)
            making.join(_TICK_S)
        server = made[0]
        if isinstance(server, CiTasksError):
            said = {"kind": type(server).__name__, "message": server.message, "hint": server.hint}
            client.sendall(REFUSED + json.dumps(said).encode())
            self._is_over = self._is_over or not self._connection.is_up  # nothing to keep
            return
        client.sendall(HELD if server.left_at else READY)
        client.settimeout(None)
        server.left_at, server.is_leaving = 0.0, False
        relay(client, server)
        server.settle()
        with self._lock:
            if not server.left_at or self._held.setdefault(command, server) is not server:
                server.end()

    def _make(self, command: str, made: list[Any]) -> None:
        """Append the server, or the error."""
        try:
            with self._lock:
                held = self._held.pop(command, None)
            if held is not None and _clock() - held.left_at > _TRUST_S:
                self._connection.prove()
            is_usable = held is not None and not held.has_ended()
            made.append(held if is_usable else _Server(self._connection.channel(command)))
        except CiTasksError as error:
            made.append(error)
        except Exception as error:  # the command that waits hears of it; there is no other place to say it
            made.append(Blocked(f"{type(error).__name__}: {error}"))


class _Server:
    """A channel to a server that may serve another client: it repeats the goodbye of a client when nothing more comes
    for that one. `left_at`: when its client left it for the next one. Its `close` ends it if its client went away
    without a goodbye."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._tail = self._said = b""  # the last bytes to the server, and from it
        self.is_leaving, self.left_at = False, 0.0

    def has_ended(self) -> bool:
        return bool(self._channel.closed or self._channel.eof_received)

    def sendall(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-frames.GOODBYE_BYTES :]
        self.is_leaving = self._tail.startswith(frames.GOODBYE_HEAD)
        self._channel.sendall(data)

    def recv(self, count: int) -> bytes:
        chunk = bytes(self._channel.recv(count))
        self._said = (self._said + chunk)[-frames.GOODBYE_BYTES :]
        return b"" if self.is_leaving else chunk

    def close(self) -> None:
        if not self.is_leaving:
            self.end()

    def settle(self) -> None:
        """After the client has gone: wait until nothing more comes for it."""
        if self.is_leaving:
            self._channel.settimeout(PATIENCE_S)
            with contextlib.suppress(OSError):
                while self._said != self._tail and not self.has_ended():
                    self.recv(_CHUNK)
            self._channel.settimeout(None)
            self.left_at = _clock() if self._said == self._tail else 0.0

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()


def is_ours(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user, as the kernel says."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def _clock() -> float:
    """One that a nap of this machine does not stop."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main() -> None:
    listener, address = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    connection = SSHConnection(address)
    path = Path(listener.getsockname())
    if socket_path(path.parent, connection.target) == path:  # no file was edited while it began
        MuxProcess(listener, address, connection).serve()
