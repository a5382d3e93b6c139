"""A connection that another process keeps, as a link: neither fabric nor paramiko is loaded here.

The first command begins that process, which connects meanwhile. A process that ended, was killed or is of another
version is replaced by the next command.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.executors.kept import places, wire
from ci_tasks.executors.link import Link, LinkDied, Stream
from ci_tasks.executors.ssh import messages
from ci_tasks.executors.ssh.ssh_config import resolve

_TRIES = 3  # a process that ends just when it is asked is replaced
_BACKLOG = 16
_ROOT = Path(__file__).resolve().parents[3]
_ERRORS: dict[str, type[CiTasksError]] = {
    error.__name__: error for error in (Blocked, LinkDied, UsageError, messages.HostKeyRefused)
}


def connect(place: Path, address: str) -> KeptLink:
    """The connection to `address` that has its socket in `place`. Its first command makes it. Raises UsageError."""
    target = resolve(address)
    return KeptLink(address, messages.describe_route(target), places.socket_path(place, target))


class KeptLink:
    """Each command gets a connection of its own to the process at `path`."""

    def __init__(self, address: str, description: str, path: Path) -> None:
        self.description = description
        self._address, self._path = address, path
        self._closed = False
        self._own: Link | None = None

    @property
    def alive(self) -> bool:
        return not self._closed

    def open(self, command: str) -> Stream:
        """Raises Blocked, LinkDied, UsageError: what the connection's process met."""
        for _ in range(_TRIES):
            sock = self._dial()
            try:
                wire.send_request(sock, {"open": command})
                kind, answer = wire.read_object(sock)
            except OSError:
                sock.close()
                continue
            if kind == wire.READY:
                return KeptStream(self.description, sock)
            sock.close()
            raise _ERRORS.get(answer.get("kind", ""), Blocked)(answer.get("message", ""), hint=answer.get("hint", ""))
        return self._own_connection().open(command)  # a process that cannot be begun keeps nobody from their host

    def interactive(self, command: str) -> int:
        return self._own_connection().interactive(command)

    def close(self) -> None:
        self._closed = True
        if self._own is not None:
            self._own.close()

    def _own_connection(self) -> Link:
        from ci_tasks.executors.ssh import connection

        self._own = self._own or connection.connect(self._address)
        return self._own

    def _dial(self) -> socket.socket:
        try:
            return wire.dial(self._path)
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        with open(self._path.with_suffix(".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return wire.dial(self._path)
            except (FileNotFoundError, ConnectionRefusedError):
                self._begin()
            return wire.dial(self._path)

    def _begin(self) -> None:
        """Begin the process, with a socket that takes commands already."""
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            listener.listen(_BACKLOG)
            find = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); "
            script = find + "from ci_tasks.executors.kept.keeper import main; main()"
            process = subprocess.Popen(
                [sys.executable, "-c", script, str(listener.fileno()), self._address],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._path.parent,
                start_new_session=True,
            )
            process.returncode = 0  # it outlives us: nobody waits for it, and nobody is warned of that


class KeptStream:
    """See ci_tasks.executors.link.Stream."""

    def __init__(self, description: str, sock: socket.socket) -> None:
        self._description, self._sock = description, sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._timeout: float | None = None
        self._left = 0  # bytes of the output frame that is being read
        self._end: dict[str, Any] | None = None
        self._closed = False

    def send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError:
            raise LinkDied(f"{self._description}: the command there has ended") from None

    def recv(self, n: int) -> bytes:
        try:
            return self._output(n)
        except (wire.WireError, ConnectionError) as error:
            if self._closed:
                return b""
            raise LinkDied(f"{self._description}: {error}") from None

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def stderr_tail(self) -> bytes:
        return base64.b64decode(self._end.get("stderr", "")) if self._end else b""

    def shut_write(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def exit_status(self) -> int | None:
        status = self._end.get("status") if self._end else None
        return status if isinstance(status, int) else None

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _output(self, n: int) -> bytes:
        if self._end is not None:
            return b""
        self._wait()
        if not self._left:
            kind, length = wire.HEAD.unpack(wire.exactly(self._sock, wire.HEAD.size))
            if kind != wire.OUTPUT:
                return self._finish(kind, wire.exactly(self._sock, length))
            self._left = length
        chunk = self._sock.recv(min(n, self._left))
        if not chunk:
            raise wire.WireError("the process that keeps the connection ended")
        self._left -= len(chunk)
        return chunk

    def _finish(self, kind: bytes, payload: bytes) -> bytes:
        answer = wire.parsed(payload)
        if kind == wire.DIED:
            raise LinkDied(answer.get("message", ""))
        self._end = answer
        return b""

    def _wait(self) -> None:
        timeout = None if self._timeout is None else self._timeout * 1000
        if not self._readable.poll(timeout):
            raise TimeoutError(f"nothing within {self._timeout:g} s")
