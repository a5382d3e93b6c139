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

from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.hosts.mux import HELD, LONGEST, PATIENCE_S, READY, REFUSED, WAIT, socket_path
from ci_tasks.hosts.ssh.connection import SSHConnection
from ci_tasks.hosts.transport import relay

IDLE_S = 600.0
_TICK_S = 1.0
_CREDENTIALS = struct.Struct("3i")
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
        self._held: dict[str, tuple[Any, float]] = {}  # command → the server that runs it, and since when it is free

    def serve(self) -> None:
        """Until no command has needed it for a while, or its socket is gone."""
        while self._commands or (self._is_wanted() and self._seconds_left() > 0):
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
        with client, contextlib.suppress(OSError, ValueError, TypeError):  # what is no request gets no answer
            client.settimeout(PATIENCE_S)
            request = dict(json.loads(client.makefile("rb").readline(LONGEST) if is_ours(client) else b""))
            if "open" in request:
                self._count(1)
                try:
                    self._open(client, str(request["open"]))
                finally:
                    self._count(-1)
                return
            left = 0.0 if self._commands else self._seconds_left()
            status = {"address": self._address, "pid": os.getpid(), "is_up": self._connection.is_up}
            client.sendall(READY + json.dumps({**status, "commands": self._commands, "seconds_left": left}).encode())
            if "end" in request:
                self._end()

    def _count(self, step: int) -> None:
        with self._lock:
            self._commands += step
            self._last_used = time.monotonic()

    def _end(self) -> None:
        """No command finds it from now on, and those that use it connect again."""
        self._path.unlink(missing_ok=True)
        self._connection.close()

    def _open(self, client: socket.socket, command: str) -> None:
        made: list[tuple[Any, bytes]] = []
        making = threading.Thread(target=lambda: made.append(self._make(command)), daemon=True)
        making.start()
        making.join(_TICK_S)
        while making.is_alive():
            client.sendall(WAIT)
            making.join(_TICK_S)
        channel, said = made[0]
        if isinstance(channel, CiTasksError):
            refusal = {"kind": type(channel).__name__, "message": channel.message, "hint": channel.hint}
            client.sendall(said + json.dumps(refusal).encode())
            if not self._connection.is_up:  # nothing to keep
                self._end()
            return
        client.sendall(said)
        client.settimeout(None)
        if relay(client, channel):
            with self._lock:
                other = self._held.pop(command, None)
                self._held[command] = channel, _clock()
            if other is not None:
                other[0].close()

    def _make(self, command: str) -> tuple[Any, bytes]:
        """A channel with the command, or the error, and what to say of it."""
        try:
            with self._lock:
                channel, since = self._held.pop(command, (None, 0.0))
            if channel is not None and _clock() - since > _TRUST_S:
                self._connection.prove()
            if channel is not None and not (channel.closed or channel.eof_received):
                return channel, HELD
            return self._connection.channel(command), READY
        except CiTasksError as error:
            return error, REFUSED
        except Exception as error:  # the command that waits hears of it; there is no other place to say it
            return Blocked(f"{type(error).__name__}: {error}"), REFUSED


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
