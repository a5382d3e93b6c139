"""The server on a host: requests on standard input, responses on standard output, until the client disconnects.

Every request can be repeated, so a client whose connection died just sends it again. Nothing here outlives the
connection but what was asked for: runs are processes of their own.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import traceback
from typing import Iterator, List, Union

from ..codec import RecordError, decode, parse
from . import frames
from .installed_agent import InstalledAgent
from .messages import ClientMessage, Hello, HostMessage, RequestError, Response
from .requests import HANDLERS, BadRequest, ServeSession
from .watch import RunWatcher

__all__ = ["InstalledAgent", "main"]

SILENCE = 40.0  # seconds without a frame of the client, which sends heartbeats: then the connection is dead
FINISH_SECONDS = 180.0  # what cancels or removes a run may take so long after that
_CHUNK = 1 << 18


def main(home: str, agent: InstalledAgent) -> None:
    """Serve one client; `agent` is where this code came from. Never returns."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    connection = _Connection()
    hello = Hello(home, (sys.executable, "%d.%d.%d" % sys.version_info[:3]), time.time())
    connection.send(frames.MAGIC + frames.message(HostMessage(hello=hello)))
    watcher = RunWatcher(connection.send)
    watcher.start()
    session = ServeSession(
        home=home,
        agent=agent,
        watcher=watcher,
        send=connection.send,
        pack_chunks=connection.pack_chunks,
        is_disconnected=connection.is_disconnected,
    )
    unfinished: List[threading.Thread] = []
    for message in connection.requests():
        unfinished = [thread for thread in unfinished if thread.is_alive()]
        if isinstance(message, Response):
            connection.send(frames.message(HostMessage(response=message)))
        else:
            unfinished += _handle(message, session, connection)
    until = time.monotonic() + FINISH_SECONDS
    for thread in unfinished:  # half of it would be worse than none: nobody may come to ask once more
        thread.join(max(0.0, until - time.monotonic()))
    session.slurm.finish(until)
    os._exit(0)


def _handle(message: ClientMessage, session: ServeSession, connection: _Connection) -> List[threading.Thread]:
    """Handle a request. Returns the thread that does, where it must finish."""
    request, number = message.request, message.id
    handler = HANDLERS[type(request)]

    def respond() -> None:
        try:
            response = Response(number, handler.handle(session, request, number))
        except BadRequest as error:
            response = Response(number, error=RequestError(error.code, str(error)))
        except Exception as error:  # whatever it is, the client waits for a response
            why = str(error) if isinstance(error, OSError) else repr(error)
            response = Response(number, error=RequestError("failed", why, traceback.format_exc()))
        try:
            connection.send(frames.message(HostMessage(response=response)))
        except OSError:  # the client has disconnected, which the main thread notices too
            pass

    if not handler.in_thread:
        respond()
        return []
    thread = threading.Thread(target=respond, daemon=True)
    thread.start()
    return [thread] if handler.must_finish else []


class _Connection:
    """Frames in and out. A pack's bytes come between requests, and are read by the request that they belong to."""

    def __init__(self) -> None:
        self._reader = frames.FrameReader()
        self._frames = self._read()
        self._writing = threading.Lock()

    def send(self, data: Union[bytes, memoryview]) -> None:
        left = memoryview(data)
        with self._writing:
            while left:
                left = left[os.write(1, left) :]

    def is_disconnected(self) -> bool:
        """Whether the other end is closed, although some of its requests may still be unread."""
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(0, select.POLLIN)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    def requests(self) -> Iterator[Union[ClientMessage, Response]]:
        """The requests; for one that cannot be decoded, the response that says so."""
        for kind, payload in self._frames:
            if kind != frames.JSON:
                continue
            data = parse(payload, where="request")
            try:
                yield decode(ClientMessage, data, where="request")
            except RecordError as error:
                number = data.get("id") if isinstance(data, dict) else None
                yield Response(number if type(number) is int else 0, error=RequestError("unknown", str(error)))

    def pack_chunks(self) -> Iterator[bytes]:
        """The bytes of the pack that follows the current request."""
        for kind, payload in self._frames:
            if kind == frames.DATA:
                if not payload:
                    return
                yield payload
        raise BadRequest("cut", "the connection ended in the middle of a pack")

    def _read(self) -> Iterator[frames.Frame]:
        while select.select([0], [], [], SILENCE)[0]:
            chunk = os.read(0, _CHUNK)
            if not chunk:
                return
            yield from list(self._reader.feed(chunk))
