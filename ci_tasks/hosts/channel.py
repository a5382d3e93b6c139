"""One conversation with a host's server: requests out, answers and news in, and the knowledge that the link is dead.

A dead link is noticed by silence: the host says something every two seconds whatever else it does. Requests go out
without waiting for earlier answers; the host works them off in order.
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
from typing import Any, Generic, TypeVar, cast

from ci_tasks import debug_log
from ci_tasks.agent.codec import RecordError, decode, parse
from ci_tasks.agent.serving import frames
from ci_tasks.agent.serving.messages import (
    ClientMessage,
    Done,
    Hello,
    HostMessage,
    Receive,
    Request,
    RequestError,
    RequestFor,
    Response,
    RunUpdate,
    result_type,
)
from ci_tasks.errors import Blocked, HostDataError, printable, shortened
from ci_tasks.hosts import bootstrap
from ci_tasks.hosts.transport import LinkDied

SILENCE_TIMEOUT_S = 10.0  # seconds without a byte after which the link is dead
BEAT = 4.0
_CHUNK = 1 << 18
R = TypeVar("R")

_QUOTED = 300  # characters of the host's own words in a message
_QUIET_HINT = "let it end early where there is no terminal; at the top of ~/.bashrc: [[ $- == *i* ]] || return"
_GREETING = 1 << 20  # bytes that a login script may print before we give up on it
_HELLO_TIMEOUT_S = 120.0  # seconds for all of them, and what follows; a slow file system takes its time
_MAX_MESSAGE = 2000  # characters of a refusal


class RequestRefused(Blocked):
    """The host cannot do what was asked; `code` is the host's, for our code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(printable(message[:_MAX_MESSAGE]))
        self.code = code


class AgentMissing(Exception):
    """The host does not have our agent any more: it has to be sent along."""


class PendingRequest(Generic[R]):
    """An answer that is on its way."""

    def __init__(self, kind: type[R], take_part: Callable[[bytes], None] | None = None) -> None:
        self._kind = kind
        self._there = threading.Event()
        self._answer: Response | None = None
        self._died = "the link is dead"
        self.on_chunk = take_part

    def wait(self) -> R:
        """The answer. Raises RequestRefused, LinkDied."""
        self._there.wait()
        if self._answer is None:
            raise LinkDied(self._died)
        if self._answer.error is not None:
            refusal = self._answer.error
            debug_log.LOGGER.debug("the host refused: %s", refusal.traceback or refusal.message)
            raise RequestRefused(self._answer.error.code, self._answer.error.message)
        if not isinstance(self._answer.result, self._kind):
            raise RequestRefused("failed", f"the host's answer is no {self._kind.__name__}")
        return self._answer.result

    def wait_for(self, seconds: float) -> bool:
        """Whether the answer, or the link's death, has come within so long."""
        return self._there.wait(seconds)

    def resolve(self, answer: Response) -> None:
        self._answer = answer
        self._there.set()

    def fail(self, why: str) -> None:
        self._died = why
        self._there.set()


class Channel:
    """`news` gets every message that answers nothing, and `log` the bytes of logs; both in the reader's thread.
    `archive` is the agent if the host needs it; None if a server runs at the other end already. `ready` is called as
    soon as requests can be posted, which travel before the host has answered at all."""

    def __init__(
        self,
        sock: socket.socket,
        archive: bytes | None,
        news: Callable[[RunUpdate], None],
        log: Callable[[int, int, bytes], None],
        ready: Callable[[Channel], None] = lambda channel: None,
    ) -> None:
        self._sock = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._news, self._log = news, log
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest[Any]] = {}
        self._writing = threading.RLock()
        self._spoken = time.monotonic()
        self.died = threading.Event()
        self.reason = ""
        self.violation = ""  # what the host sent that no host of ours sends
        # An empty line is for a login script that reads one.
        first = frames.frame(frames.HEARTBEAT) if archive is None else b"\n" + bootstrap.header(len(archive)) + archive
        # In a thread, since a host that talks before it listens would have both wait for each other.
        threading.Thread(target=self._start, args=(first, ready), daemon=True, name="ci-tasks start").start()

    def _start(self, first: bytes, ready: Callable[[Channel], None]) -> None:
        with contextlib.suppress(LinkDied):  # what the host says to `hello` tells more
            self._send(first)
            if not self.died.is_set():
                ready(self)

    def hello(self) -> Hello:
        """Wait for the host's first words. Raises LinkDied, AgentMissing, HostDataError, Blocked."""
        self._hello_deadline = time.monotonic() + _HELLO_TIMEOUT_S
        try:
            hello, reader, got = self._hello()
        except BaseException as error:
            self.close("the host did not answer")
            self._sock.close()
            if not isinstance(error, TimeoutError):
                raise
            raise LinkDied(  # a link that died at this very moment; the next one may live
                f"not a word from the host for {SILENCE_TIMEOUT_S * 2:g} s; does a login script there (~/.bashrc) wait "
                "or read standard input?"
            ) from None
        threading.Thread(target=self._read, args=(reader, got), daemon=True, name="ci-tasks reader").start()
        threading.Thread(target=self._beat, daemon=True, name="ci-tasks beat").start()
        return hello

    def _hello(self) -> tuple[Hello, frames.FrameReader, list[frames.Frame]]:
        data = b""
        while frames.MAGIC not in data:
            chunk = self._receive_hello()
            data += chunk
            if not chunk or len(data) > _GREETING:
                raise self._no_hello(data)
        rest = data.partition(frames.MAGIC)[2] or self._receive_hello()
        if rest[:1] == frames.ASKS_FOR_AGENT:
            raise AgentMissing
        if rest[:1] == frames.PYTHON_TOO_OLD:
            version = printable(rest[1:40].decode(errors="replace"))
            raise Blocked(
                f"python3 there is {version}", hint="ci-tasks needs Python 3.8 or newer as python3 on the host"
            )
        if rest[:1] == frames.HOME_REFUSED:
            why = printable(rest[1:_QUOTED].decode(errors="replace"))
            raise Blocked(
                f"the workspace on the host cannot be used: {why}",
                hint="name a directory of your own as `workspace` of the host in hosts.yaml",
            )
        if rest[:1] == frames.INPUT_TAKEN:
            raise Blocked("a login script on the host reads standard input", hint=_QUIET_HINT)
        reader = frames.FrameReader()
        try:
            got = list(reader.feed(rest))
            while not got:
                chunk = self._receive_hello()
                if not chunk:
                    raise self._no_hello(b"")
                got = list(reader.feed(chunk))
            kind, payload = got[0]
            message = decode(HostMessage, parse(payload, where="hello"), where="hello")
        except (RecordError, frames.FrameError) as error:
            raise HostDataError(_bounded(error)) from None
        if message.hello is None or kind != frames.JSON:
            raise HostDataError("a first message that is no greeting")
        return message.hello, reader, got[1:]

    def _receive_hello(self) -> bytes:
        if time.monotonic() > self._hello_deadline:
            raise LinkDied(f"no answer of ci-tasks from the host within {_HELLO_TIMEOUT_S:g} s")
        return self._receive(SILENCE_TIMEOUT_S * 2)

    def _receive(self, seconds: float) -> bytes:
        """Raises TimeoutError, LinkDied."""
        if not self._readable.poll(1000 * seconds):
            raise TimeoutError
        try:
            return self._sock.recv(_CHUNK)
        except OSError as error:
            raise LinkDied(self.reason or str(error)) from None

    def post(self, request: RequestFor[R], take_part: Callable[[bytes], None] | None = None) -> PendingRequest[R]:
        """Ask, and go on. Raises LinkDied."""
        number = next(self._numbers)
        pending = self._pending[number] = PendingRequest(result_type(request), take_part)
        debug_log.LOGGER.debug("request %d: %s", number, type(request).__name__)  # its fields may be secret
        self._send(frames.message(ClientMessage(number, cast(Request, request))))
        return pending

    def post_pack(self, pack: Iterable[bytes], form: str) -> PendingRequest[Done]:
        """Send one pack of objects. Raises LinkDied."""
        return self.post_bytes(Receive(form), pack)

    def post_bytes(self, request: RequestFor[Done], pack: Iterable[bytes]) -> PendingRequest[Done]:
        """Send a request that is followed by bytes; nothing else comes in between. Raises LinkDied."""
        with self._writing:
            pending = self.post(request)
            try:
                for chunk in pack:
                    self._send(frames.frame(frames.DATA, chunk))
            except LinkDied:
                raise
            except BaseException:  # the host waits for the rest, and would take whatever comes next for a part of it
                self.close("the pack broke off")
                raise
            self._send(frames.frame(frames.DATA))
        return pending

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
        """Give up: whoever waits for an answer hears that the link is dead."""
        if not self.died.is_set():
            self.reason = reason
            self.died.set()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        for pending in [self._pending.pop(number) for number in list(self._pending)]:
            pending.fail(self.reason)

    def _send(self, data: bytes) -> None:
        try:
            with self._writing:
                if self.died.is_set():
                    raise LinkDied(self.reason)
                self._sock.sendall(data)
                self._spoken = time.monotonic()
        except OSError as error:
            self.close("the connection was lost")
            raise LinkDied(self.reason) from error
        except LinkDied as error:
            self.close(str(error))
            raise

    def _beat(self) -> None:
        while not self.died.wait(1.0):
            if time.monotonic() - self._spoken > BEAT and self._writing.acquire(blocking=False):
                try:
                    self._send(frames.frame(frames.HEARTBEAT))
                except LinkDied:
                    return
                finally:
                    self._writing.release()

    def _read(self, reader: frames.FrameReader, got: list[frames.Frame]) -> None:
        try:
            for kind, payload in got:
                self._take(kind, payload)
            while not self.died.is_set():
                chunk = self._receive(SILENCE_TIMEOUT_S)
                if not chunk:
                    raise LinkDied("the connection was lost")
                for kind, payload in reader.feed(chunk):
                    self._take(kind, payload)
        except TimeoutError:
            self.close(f"not a word from the host for {SILENCE_TIMEOUT_S:g} s")
        except (frames.FrameError, RecordError) as error:
            self.violation = _bounded(error)
            self.close(self.violation)
        except (LinkDied, OSError) as error:  # a full disk here, say: nobody may wait for ever
            self.close(str(error))
        except Exception as error:
            debug_log.LOGGER.error("the link's reader", exc_info=error)
            self.close(f"cannot read what the host sent: {debug_log.one_line(error)}")
        finally:
            self._sock.close()

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.LOG:
            self._log(*frames.read_log(payload))
        elif kind == frames.PACKED_LOG:
            self._log(*frames.read_packed_log(payload))
        elif kind == frames.PART:
            number, chunk = frames.read_part(payload)
            waiting = self._pending.get(number)
            if waiting is not None and waiting.on_chunk is not None:
                waiting.on_chunk(chunk)
        elif kind == frames.JSON:
            message = _understood(payload)
            if message.update is not None:
                self._news(message.update)
            if message.response is not None and message.response.id in self._pending:
                self._pending.pop(message.response.id).resolve(message.response)

    def _no_hello(self, data: bytes) -> Exception:
        text = printable(data.decode(errors="replace")).strip()
        last = shortened(text.splitlines()[-1], _QUOTED) if text else "nothing"
        if len(data) > _GREETING:
            return Blocked(f"a login script on the host prints without end; its last line: {last}", hint=_QUIET_HINT)
        if "not found" in last.lower() or "python3" in last:
            return Blocked(
                f"no python3 there ({last})", hint="ci-tasks needs Python 3.8 or newer as python3 on the host"
            )
        if not text:
            return LinkDied("the host ended the connection before it said anything")
        return Blocked(f"the host does not answer as ci-tasks does; it said: {last}")


def _bounded(error: Exception) -> str:
    return printable(str(error)[:_MAX_MESSAGE])


def _understood(payload: bytes) -> HostMessage:
    """A message of the host. What cannot be understood of an answer or of news becomes its refusal or problem: it is
    one request's, or one run's. Raises RecordError."""
    data = parse(payload, where="message")
    try:
        return decode(HostMessage, data, where="message")
    except RecordError as error:
        why = error
    response, update = (data.get("response"), data.get("update")) if isinstance(data, dict) else (None, None)
    if isinstance(response, dict) and type(response.get("id")) is int:
        return HostMessage(response=Response(response["id"], error=RequestError("failed", str(why))))
    if isinstance(update, dict) and type(update.get("key")) is int:
        return HostMessage(update=RunUpdate(update["key"], problem=str(why)))
    raise why
