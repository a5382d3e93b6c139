"""What a command and the process that keeps its connection say to each other over a Unix socket.

The command sends one request, JSON behind its length, and from then on the bytes for the host, as they are. The other
way come frames: a kind, a length and a payload. READY or REFUSED comes first, END or DIED last.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci_tasks.errors import Blocked

READY, REFUSED, OUTPUT, END, DIED = b"R", b"X", b"O", b"E", b"D"
HEAD = struct.Struct(">cI")
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")
_MAX_MESSAGE = 1 << 20  # bytes of a request, and of each frame but OUTPUT


class WireError(OSError):
    """The other side went away, or is no process of ours."""


def dial(path: Path) -> socket.socket:
    """Raises Blocked where another user's process listens, OSError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(path))
        if not peer_is_ours(sock):
            raise Blocked(f"{path} is another user's", hint="remove it, or use --no-persist")
    except BaseException:
        sock.close()
        raise
    return sock


def peer_is_ours(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user, as the kernel says."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def send_request(sock: socket.socket, request: Mapping[str, Any]) -> None:
    text = json.dumps(request).encode()
    sock.sendall(_LENGTH.pack(len(text)) + text)


def read_request(sock: socket.socket) -> dict[str, Any]:
    """Raises WireError."""
    (length,) = _LENGTH.unpack(exactly(sock, _LENGTH.size))
    return parsed(exactly(sock, _checked(length)))


def send(sock: socket.socket, kind: bytes, payload: bytes = b"") -> None:
    head = HEAD.pack(kind, len(payload))
    sent = sock.sendmsg([head, payload])  # in one call, which wakes the reader once
    if sent < len(head) + len(payload):
        sock.sendall((head + payload)[sent:])


def send_object(sock: socket.socket, kind: bytes, values: Mapping[str, Any]) -> None:
    send(sock, kind, json.dumps(values).encode())


def read_object(sock: socket.socket) -> tuple[bytes, dict[str, Any]]:
    """A frame with an object. Raises WireError."""
    kind, length = HEAD.unpack(exactly(sock, HEAD.size))
    return kind, parsed(exactly(sock, _checked(length)))


def exactly(sock: socket.socket, count: int) -> bytes:
    """Raises WireError."""
    data = b""
    while len(data) < count:
        try:
            chunk = sock.recv(count - len(data))
        except ConnectionError as error:
            raise WireError(error.errno, error.strerror) from None
        if not chunk:
            raise WireError("the process that keeps the connection ended")
        data += chunk
    return data


def _checked(length: int) -> int:
    if length > _MAX_MESSAGE:
        raise WireError(f"a message of {length} bytes")
    return length


def parsed(text: bytes) -> dict[str, Any]:
    """Raises WireError."""
    try:
        value = json.loads(text or b"{}")
    except ValueError as error:
        raise WireError(f"a message that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError("a message that is no object")
    return value
