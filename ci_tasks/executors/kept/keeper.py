"""The process that keeps a connection, as OpenSSH's ControlPersist does: `python -m ci_tasks.executors.kept.keeper`.

It connects when the first command asks for a channel, opens a channel for each command of the same user, copies bytes
both ways without keeping them, and ends when nobody has used it for a while. A connection that died, or that has been
silent over a nap of the machine, is made again before the next channel. Nothing is written anywhere.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ci_tasks import debug_log
from ci_tasks.errors import CiTasksError
from ci_tasks.executors.kept import wire
from ci_tasks.executors.link import Link, LinkDied, Stream

IDLE_S = 600.0  # seconds without a command after which it ends
_SILENT_S = 8.0  # seconds without a sign of life, which is asked for every 4, after which a connection is not trusted
_TICK_S = 1.0
_CHUNK = 1 << 18


class KeepableLink(Link, Protocol):
    @property
    def silent_for(self) -> float:
        """Seconds since the host gave a sign of life, a nap of this machine included."""


class Keeper:
    """Serves the clients of one socket. `connect` makes the connection."""

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        connect: Callable[[], KeepableLink],
        *,
        idle_s: float = IDLE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._address, self._connect = listener, address, connect
        self._idle_s, self._now = idle_s, now
        self._link: KeepableLink | None = None
        self._connecting = threading.Lock()
        self._counting = threading.Lock()
        self._commands = 0
        self._last_used = now()
        self._over = threading.Event()
        # Not by shutting the listener: `accept` with a timeout would ask it again and again until that is over.
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Until nobody has needed it for `idle_s`, or somebody ends it. The socket's file goes with it."""
        path = Path(self._listener.getsockname())
        inode = path.stat().st_ino
        self._listener.setblocking(False)
        try:
            while not self._over.is_set() and not self._is_idle():
                if self._listener not in select.select([self._listener, self._woken], [], [], _TICK_S)[0]:
                    continue
                try:
                    client, _ = self._listener.accept()
                except BlockingIOError:  # it has gone again
                    continue
                except OSError:  # this process has no room for another
                    break
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:  # not that of one which followed
                    path.unlink()
            self._listener.close()
            self._woken.close()
            self._waker.close()
            if self._link is not None:
                self._link.close()

    def _is_idle(self) -> bool:
        with self._counting:
            return not self._commands and self._now() - self._last_used > self._idle_s

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(None)
            if wire.peer_is_ours(client):
                self._serve_request(client, wire.read_request(client))

    def _serve_request(self, client: socket.socket, request: dict[str, Any]) -> None:
        if "open" in request:
            self._open(client, str(request["open"]))
        elif "end" in request:
            self._end()
            wire.send_object(client, wire.READY, {})
        else:
            wire.send_object(client, wire.READY, self._status())

    def _status(self) -> dict[str, Any]:
        with self._counting:
            commands = self._commands
            left = 0.0 if commands else max(0.0, self._idle_s - (self._now() - self._last_used))
        link = self._link
        is_up = link is not None and link.alive
        return {
            "address": self._address,
            "pid": os.getpid(),
            "is_up": is_up,
            "commands": commands,
            "seconds_left": left,
        }

    def _open(self, client: socket.socket, command: str) -> None:
        with self._counting:
            self._commands += 1
        try:
            self._give(client, command)
        finally:
            with self._counting:
                self._commands -= 1
                self._last_used = self._now()

    def _give(self, client: socket.socket, command: str) -> None:
        try:
            stream = self._usable_link().open(command)
        except CiTasksError as error:
            said = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
            wire.send_object(client, wire.REFUSED, said)
        except Exception as error:  # whoever waits hears of it; there is no other place to say it
            what = debug_log.one_line(error)
            wire.send_object(client, wire.REFUSED, {"kind": "Blocked", "message": what, "hint": ""})
        else:
            wire.send_object(client, wire.READY, {})
            _relay(client, stream)
            return
        if self._link is None:  # nothing to keep
            self._end()

    def _end(self) -> None:
        self._over.set()
        self._waker.close()

    def _usable_link(self) -> KeepableLink:
        """The connection, made anew where it is not known to live. Raises what `connect` raises."""
        with self._connecting:
            if self._link is not None and (not self._link.alive or self._link.silent_for > _SILENT_S):
                self._link.close()
                self._link = None
            if self._link is None:
                self._link = self._connect()
            return self._link


def _relay(client: socket.socket, stream: Stream) -> None:
    """Copy until the command on the host or the client has ended."""
    to_host = threading.Thread(target=_to_host, args=(client, stream), daemon=True)
    to_host.start()
    try:
        stream.settimeout(None)
        while chunk := stream.recv(_CHUNK):
            wire.send(client, wire.OUTPUT, chunk)
        last_words = base64.b64encode(stream.stderr_tail()).decode()
        wire.send_object(client, wire.END, {"status": stream.exit_status(), "stderr": last_words})
    except LinkDied as death:
        wire.send_object(client, wire.DIED, {"message": death.message})
    finally:
        stream.close()
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        to_host.join()


def _to_host(client: socket.socket, stream: Stream) -> None:
    with contextlib.suppress(OSError, LinkDied):
        while chunk := client.recv(_CHUNK):
            stream.send(chunk)
        stream.shut_write()
        # It may have sent all that it had, or be gone; of the latter the kernel says so.
        gone = select.poll()
        gone.register(client, 0)
        gone.poll()
    stream.close()


def main() -> None:
    from ci_tasks.executors.ssh.connection import connect

    descriptor, address = sys.argv[1:]
    Keeper(socket.socket(fileno=int(descriptor)), address, partial(connect, address)).serve()


if __name__ == "__main__":
    main()
