"""A TCP proxy that can be silent or cruel: what lies between a laptop and a host.

with TcpProxy(("127.0.0.2", 2222)) as link:
    connect to ("127.0.0.1", link.port)
    link.blackhole()    nothing gets through any more, and nobody is told; new connections are taken and ignored
    link.restore()      what was held back arrives
    link.cut()          every connection is reset
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

_CHUNK = 1 << 16


class TcpProxy:
    """Forwards every connection on `port` of 127.0.0.1 to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.connections = 0  # that were ever made
        self.carried = [0, 0]  # bytes to the target, and from it
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def blackhole(self) -> None:
        self._open.clear()

    def restore(self) -> None:
        self._open.set()

    def cut(self) -> None:
        with self._lock:
            cut, self._sockets = self._sockets, set()
        for sock in cut:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
            _end(sock)

    def close(self) -> None:
        self._closed = True
        _end(self._listener)
        self.cut()
        self.restore()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self, run: object, *args: object) -> None:
        threading.Thread(target=run, args=args, daemon=True, name="tcp proxy").start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        self._keep(near)
        self._open.wait()
        try:
            far = socket.create_connection(self._target, timeout=10)
        except OSError:
            self._drop(near)
            return
        far.settimeout(None)
        self._keep(far)
        for direction, (source, sink) in enumerate(((near, far), (far, near))):
            with contextlib.suppress(OSError):  # closed meanwhile
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._carry, source, sink, direction)

    def _carry(self, source: socket.socket, sink: socket.socket, direction: int) -> None:
        chunk = b"?"
        while chunk:
            self._open.wait()  # a black hole acknowledges nothing for long
            try:
                chunk = source.recv(_CHUNK)
            except OSError:
                chunk = b""
            self._open.wait()
            try:
                sink.sendall(chunk) if chunk else sink.shutdown(socket.SHUT_WR)
            except OSError:
                self._drop(sink)
                return
            self.carried[direction] += len(chunk)

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
        if self._closed:
            self.cut()

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)
        _end(sock)


def _end(sock: socket.socket) -> None:
    """Also for a thread that waits in it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
