"""The sockets below SSH: dialled with limits, or led through a ProxyCommand, and counting what comes through."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from typing import Any

from ci_tasks import debug_log
from ci_tasks.executors.link import StderrTail
from ci_tasks.executors.ssh.ssh_config import SSHTarget

_DEAD_AFTER_MS = 15_000  # what was sent is acknowledged within, or the kernel gives up
_TERMINATE_TIMEOUT_S = 0.5
_BEGINNING = 100  # reads, about as many as the handshake and the first command need
_AHEAD = 1 << 18  # bytes that are read at once; paramiko itself reads twice for every packet of at most 32 KiB


class ReceivedBytes:
    """The socket of a link, read ahead, and how often something came through it."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._held = memoryview(b"")
        self.count = 0
        # A server waits with small packets for our acknowledgement, which the kernel likes to hold back for 40 ms.
        self._quick_ack = getattr(socket, "TCP_QUICKACK", None) if isinstance(sock, socket.socket) else None

    def recv(self, n: int) -> bytes:
        if not self._held:
            self._held = memoryview(self._sock.recv(max(n, _AHEAD)))
            self.count += 1
            if self.count < _BEGINNING and self._quick_ack is not None:
                with contextlib.suppress(OSError):
                    self._sock.setsockopt(socket.IPPROTO_TCP, self._quick_ack, 1)
        taken, self._held = bytes(self._held[:n]), self._held[n:]
        return taken

    def close(self) -> None:
        # A channel through a gateway says farewell, which fails where the gateway is gone, in a thread of paramiko's.
        with debug_log.ignored("closing a socket"):
            self._sock.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class ProxyCommand:
    """A command whose standard input and output lead to the server. paramiko's own never notices that it has ended."""

    def __init__(self, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        shell = shutil.which("sh") or "/bin/sh"
        with theirs:
            self._process = subprocess.Popen(
                [shell, "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # a ^C is for us; we end it
            )
        assert self._process.stderr
        self._tail = StderrTail(self._process.stderr.read, self._process.stderr.close)

    def stderr_tail(self) -> str:
        return self._tail.last().decode(errors="replace")

    def close(self) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def dial(target: SSHTarget) -> socket.socket:
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(target.family, socket.AF_UNSPEC)
    last: OSError | None = None
    try:
        places = socket.getaddrinfo(target.host, target.port, family, socket.SOCK_STREAM)
    except UnicodeError as error:  # a part of it is empty or too long for a name
        raise socket.gaierror(socket.EAI_NONAME, "not a possible name") from error
    for address in places:
        made = socket.socket(*address[:3])
        try:
            made.settimeout(target.connect_timeout)
            made.connect(address[4])
            _tune(made)
            return made
        except OSError as error:
            made.close()
            last = error
        except BaseException:
            made.close()
            raise
    raise last or OSError(f"{target.host} has no address")


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)
