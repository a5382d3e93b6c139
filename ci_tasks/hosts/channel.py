"""One conversation with a host's server: requests out, responses and updates in, and the knowledge that the link is
dead: the host says something every two seconds whatever else it does.

Requests go out without waiting for earlier responses; the host handles those that depend on each other in order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable

from ci_tasks import debug_log
from ci_tasks.agent.codec import RecordError, decode, parse
from ci_tasks.agent.serving import frames
from ci_tasks.agent.serving.messages import (
    ClientMessage,
    Hello,
    HostMessage,
    Receive,
    Request,
    Response,
    Result,
    RunUpdate,
)
from ci_tasks.errors import Blocked, HostDataError, printable, shortened
from ci_tasks.hosts import bootstrap
from ci_tasks.hosts.transport import LinkDied

SILENCE_TIMEOUT_S = 10.0  # seconds without a byte after which the link is dead
BEAT = 4.0  # seconds between two frames of ours
_TICKS = 10  # looks within a silence: after a nap of this machine the host gets most of them again
_CHUNK = 1 << 18
_QUOTED = 300  # characters of the host's own words in a message
_MAX_MESSAGE = 2000  # characters of a refusal
_GREETING = 1 << 20  # bytes that a login script may print before we give up on it
_HELLO_TIMEOUT_S = 120.0  # seconds for all of them, and what follows; a slow file system takes its time
_QUIET_HINT = "let it end early where there is no terminal; at the top of ~/.bashrc: [[ $- == *i* ]] || return"
_PYTHON_HINT = "ci-tasks needs Python 3.8 or newer as python3 on the host"


class RequestRefused(Blocked):
    """The host cannot do what was asked; `code` is the host's, for our code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(printable(message[:_MAX_MESSAGE]))
        self.code = code


class AgentMissing(Exception):
    """The host does not have our agent any more: it has to be sent along."""


class PendingRequest:
    """A response that is on its way; `on_chunk` takes the bytes that come with it."""

    def __init__(self, on_chunk: Callable[[bytes], None] = lambda chunk: None) -> None:
        self.on_chunk = on_chunk
        self._there = threading.Event()
        self._response: Response | None = None
        self._died = ""

    def wait(self, seconds: float | None = None) -> Result:
        """Raises RequestRefused, LinkDied; TimeoutError if neither comes within so long."""
        if not self._there.wait(seconds):
            raise TimeoutError
        if self._response is None:
            raise LinkDied(self._died)
        if self._response.code:
            debug_log.LOGGER.debug("the host refused: %s", self._response.traceback or self._response.error)
            raise RequestRefused(self._response.code, self._response.error)
        return self._response.result

    def settle(self, response: Response | None, died: str = "") -> None:
        self._response, self._died = response, died
        self._there.set()


class Channel:
    """`news` gets every update, and `log` the bytes of logs, both in the thread that calls `read`. `archive` is the
    agent if the host needs it; None if a server runs at the other end already. `ready` is called as soon as requests
    can be posted, which travel before the host has answered at all."""

    def __init__(
        self,
        sock: socket.socket,
        archive: bytes | None,
        news: Callable[[RunUpdate], None],
        log: Callable[[int, int, bytes], None],
        ready: Callable[[Channel], None] = lambda channel: None,
    ) -> None:
        self._sock, self._news, self._log = sock, news, log
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._reader = frames.FrameReader()
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._writing = threading.RLock()
        self._spoken = time.monotonic()
        self.died = threading.Event()
        self.reason = ""
        self.was_refused = False  # the host's first words were a refusal: it handles no request
        # An empty line is for a login script that reads one.
        first = frames.frame(frames.HEARTBEAT) if archive is None else b"\n" + bootstrap.header(len(archive)) + archive
        # In a thread, since a host that talks before it listens would have both wait for each other.
        threading.Thread(target=self._start, args=(first, ready), daemon=True, name="ci-tasks start").start()

    def _start(self, first: bytes, ready: Callable[[Channel], None]) -> None:
        with contextlib.suppress(LinkDied):  # what the host says to `hello` tells more
            self._send(first)
            if not self.died.is_set():
                ready(self)

    # -- what the host says ------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Wait for the host's first words. Raises LinkDied, AgentMissing, HostDataError, Blocked."""
        try:
            return self._hello()
        except (LinkDied, HostDataError):
            raise
        except (AgentMissing, Blocked):
            self.was_refused = True
            raise
        except (RecordError, frames.FrameError) as error:
            raise HostDataError(_bounded(error)) from None
        except TimeoutError:  # a link that died at this very moment; the next one may live
            silence = SILENCE_TIMEOUT_S * 2
            raise LinkDied(
                f"not a word from the host for {silence:g} s; does a login script there (~/.bashrc) wait or read "
                "standard input?"
            ) from None

    def _hello(self) -> Hello:
        deadline, data = time.monotonic() + _HELLO_TIMEOUT_S, b""

        def receive() -> bytes:
            chunk = self._receive(2 * _TICKS)
            if not chunk or len(data) > _GREETING or time.monotonic() > deadline:
                raise _no_hello(data.partition(frames.MAGIC)[0], is_endless=bool(chunk))
            return chunk

        while frames.MAGIC not in data:
            data += receive()
        rest = data.partition(frames.MAGIC)[2] or receive()
        said = printable(rest[1:_QUOTED].decode(errors="replace"))
        if rest[:1] == frames.ASKS_FOR_AGENT:
            raise AgentMissing
        if rest[:1] == frames.PYTHON_TOO_OLD:
            raise Blocked(f"python3 there is {said}", hint=_PYTHON_HINT)
        if rest[:1] == frames.HOME_REFUSED:
            hint = "name a directory of your own as `workspace` of the host in hosts.yaml"
            raise Blocked(f"the workspace on the host cannot be used: {said}", hint=hint)
        if rest[:1] == frames.INPUT_TAKEN:
            raise Blocked("a login script on the host reads standard input", hint=_QUIET_HINT)
        while (first := next(self._reader.feed(rest), None)) is None:
            rest = receive()
        message = decode(HostMessage, parse(first[1], where="hello"), where="hello")
        if message.hello is None or first[0] != frames.JSON:
            raise HostDataError("a first message that is no greeting")
        return message.hello

    def read(self) -> None:
        """Take what comes until the link dies, which is raised: LinkDied, HostDataError."""
        try:
            chunk: bytes | None = b""
            while chunk is not None and not self.died.is_set():
                for kind, payload in self._reader.feed(chunk):
                    self._take(kind, payload)
                chunk = self._receive(_TICKS) or None
            raise LinkDied(self.reason or "the connection was lost")
        except TimeoutError:
            raise LinkDied(f"not a word from the host for {SILENCE_TIMEOUT_S:g} s") from None
        except (frames.FrameError, RecordError) as error:
            raise HostDataError(_bounded(error)) from None
        except OSError as error:  # a full disk here, say: no request may wait for ever
            raise LinkDied(str(error)) from None

    def _receive(self, ticks: int) -> bytes:
        """What comes; nothing at the end. Raises TimeoutError, LinkDied."""
        for _ in range(ticks):
            if time.monotonic() - self._spoken > BEAT:
                with contextlib.suppress(OSError):  # full: what is on its way says that we are here
                    self._spoken = time.monotonic()
                    if self._writing.acquire(blocking=False):
                        try:
                            self._sock.send(frames.frame(frames.HEARTBEAT), socket.MSG_DONTWAIT)
                        finally:
                            self._writing.release()
            if self._readable.poll(1000 * SILENCE_TIMEOUT_S / _TICKS):
                try:
                    return self._sock.recv(_CHUNK)
                except OSError as error:
                    raise LinkDied(self.reason or str(error)) from None
        raise TimeoutError

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind in (frames.LOG, frames.PACKED_LOG):
            self._log(*frames.read_log(kind, payload))
        elif kind == frames.PART:
            number, chunk = frames.read_part(payload)
            if number in self._pending:
                self._pending[number].on_chunk(chunk)
        elif kind == frames.JSON:
            message = _understood(payload)
            if message.update is not None:
                self._news(message.update)
            if message.response is not None and message.response.id in self._pending:
                self._pending.pop(message.response.id).settle(message.response)

    # -- what we say -------------------------------------------------------------------------------------------------

    def post(
        self,
        request: Request,
        on_chunk: Callable[[bytes], None] = lambda chunk: None,
        pack: Iterable[bytes] | None = None,
    ) -> PendingRequest:
        """Ask, and go on. The bytes of a `pack` follow the request; nothing else comes in between. Raises LinkDied."""
        number = next(self._numbers)
        pending = self._pending[number] = PendingRequest(on_chunk)
        debug_log.LOGGER.debug("request %d: %s", number, type(request).__name__)  # its fields may be secret
        with self._writing:
            self._send(frames.message(ClientMessage(number, request)))
            if pack is not None:
                try:
                    for chunk in pack:
                        self._send(frames.frame(frames.DATA, chunk))
                    self._send(frames.frame(frames.DATA))
                except BaseException:  # the host would take whatever comes next for a part of it
                    self.close("the pack broke off")
                    raise
        return pending

    def post_pack(self, pack: Iterable[bytes], form: str) -> PendingRequest:
        """Send one pack of objects. Raises LinkDied."""
        return self.post(Receive(form), pack=pack)

    def leave(self) -> None:
        """Close it; its server may serve the next command."""
        if not self.died.is_set() and self._writing.acquire(blocking=False):
            try:
                with contextlib.suppress(LinkDied):
                    self._send(frames.frame(frames.GOODBYE, os.urandom(16)))
            finally:
                self._writing.release()
        self.close()

    def close(self, reason: str = "closed") -> None:
        """Give up: every pending request hears that the link is dead."""
        if not self.died.is_set():
            self.reason = reason
            self.died.set()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        for number in list(self._pending):
            self._pending.pop(number).settle(None, self.reason)

    def _send(self, data: bytes) -> None:
        try:
            with self._writing:
                if not self.died.is_set():
                    self._sock.sendall(data)
                    self._spoken = time.monotonic()
        except OSError:
            self.close("the connection was lost")
        if self.died.is_set():
            self.close()  # what was posted meanwhile
            raise LinkDied(self.reason)


def _no_hello(data: bytes, *, is_endless: bool) -> Exception:
    text = printable(data.decode(errors="replace")).strip()
    last = shortened(text.splitlines()[-1], _QUOTED) if text else "nothing"
    if is_endless and len(data) > _GREETING:
        return Blocked(f"a login script on the host prints without end; its last line: {last}", hint=_QUIET_HINT)
    if is_endless:
        return LinkDied(f"no answer of ci-tasks from the host within {_HELLO_TIMEOUT_S:g} s")
    if "not found" in last.lower() or "python3" in last:
        return Blocked(f"no python3 there ({last})", hint=_PYTHON_HINT)
    if not text:
        return LinkDied("the host ended the connection before it said anything")
    return Blocked(f"the host does not answer as ci-tasks does; it said: {last}")


def _bounded(error: Exception) -> str:
    return printable(str(error)[:_MAX_MESSAGE])


def _understood(payload: bytes) -> HostMessage:
    """A message of the host. A response or update that cannot be decoded becomes a refusal or a problem: it is one
    request's, or one run's. Raises RecordError."""
    data = parse(payload, where="message")
    try:
        return decode(HostMessage, data, where="message")
    except RecordError as error:
        for name in ("response", "update"):
            part = data.get(name) if isinstance(data, dict) else None
            number = part.get("id" if name == "response" else "key") if isinstance(part, dict) else None
            if type(number) is int and name == "response":
                return HostMessage(response=Response(number, error=str(error), code="failed"))
            if type(number) is int:
                return HostMessage(update=RunUpdate(number, problem=str(error)))
        raise
