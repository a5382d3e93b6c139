"""Kept connections: processes that outlive their command, as OpenSSH's ControlPersist, and how they are asked.

A command sends one line of JSON and gets bytes: WAIT each second while the connection is made, then READY or HELD, and
from then on the socket is the channel; or REFUSED with the reason. A process that says nothing for PATIENCE_S does not
count.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked

if TYPE_CHECKING:
    import socket  # a command that only looks does not load it

PATIENCE_S = 5.0
WAIT, READY, HELD, REFUSED = b".", b"+", b"=", b"-"
LONGEST = 1 << 17  # bytes of a request or an answer
_LONGEST_PATH = 100  # bytes of a socket's path; the kernel's own limit is 107
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class KeptConnection:
    """A process that keeps a connection, and how long it does if no command uses it."""

    address: str
    pid: int
    is_up: bool
    commands: int
    seconds_left: float


def directory() -> Path | None:
    """A directory that no other user can look into: below XDG_RUNTIME_DIR, or one of ours beside other temporary files.
    None if neither is there: no connection is kept then."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = Path(os.environ.get("TMPDIR") or "/tmp", f"ci-tasks-{os.geteuid()}")
    place = Path(runtime, "ci-tasks") if runtime else temporary
    if (runtime and not _is_private(Path(runtime))) or len(os.fsencode(place)) > _LONGEST_PATH - 40:
        return None
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
    return place if _is_private(place) else None


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def kept_connections() -> list[KeptConnection]:
    """Those of this user that answer."""
    return [connection for _, connection in _processes()]


def end(address: str | None = None) -> list[KeptConnection]:
    """End those to `address`, or all. Commands that use one connect again."""
    ended = []
    for path, connection in list(_processes()):
        if address is None or connection.address == address:
            with contextlib.suppress(OSError, ValueError):
                _asked(path, {"end": True})
            ended.append(connection)
    return ended


def _processes() -> Iterator[tuple[Path, KeptConnection]]:
    place = directory()
    for path in sorted(place.glob("*.sock")) if place else []:
        with contextlib.suppress(OSError, ValueError, TypeError):  # it has ended, or was stopped
            yield path, KeptConnection(**_asked(path, {"status": True}))


def _asked(path: Path, what: Mapping[str, Any]) -> dict[str, Any]:
    sock = dial(path)
    if sock is None:
        raise FileNotFoundError(path)
    with sock:
        request(sock, what)
        return answer(sock)


def dial(path: Path) -> socket.socket | None:
    """None if no process listens. Raises Blocked where another user's process does, OSError."""
    import socket

    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(PATIENCE_S)  # the queue of one that was stopped may be full
        sock.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    if is_ours(sock):
        return sock
    sock.close()
    raise Blocked(f"{path} is another user's", hint="remove it, or use --no-persist")


def is_ours(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user, as the kernel says."""
    import socket

    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def request(sock: socket.socket, what: Mapping[str, Any]) -> bytes:
    """What it says first, after WAIT; nothing if it ended."""
    sock.sendall(json.dumps(what).encode() + b"\n")
    while (said := sock.recv(1)) == WAIT:
        pass
    return said


def answer(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while len(data) < LONGEST and (chunk := sock.recv(LONGEST)):
        data += chunk
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
