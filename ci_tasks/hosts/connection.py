"""A connection to a host's server that comes back: requests out, responses, updates and logs in.

The host says something every two seconds, so a silent link is dead. Requests go out without waiting for earlier
responses, before the host has answered at all. A laptop that slept, a sshd that was restarted, a cut cable: the
connection says so once, tries again with growing pauses, and says when it is back. Every request may be repeated.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ci_tasks import debug_log
from ci_tasks.agent import archive
from ci_tasks.agent.codec import RecordError, decode, parse
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.serving import frames
from ci_tasks.agent.serving.messages import (
    ClientMessage,
    Hello,
    HostMessage,
    Request,
    Response,
    Result,
    RunPrograms,
    RunUpdate,
)
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CiTasksError, HostDataError, InternalError, printable, shortened
from ci_tasks.hosts import bootstrap, host_cache
from ci_tasks.hosts.ssh.messages import HostKeyRefused
from ci_tasks.hosts.transport import LinkDied, Transport

SILENCE_TIMEOUT_S = 10.0  # seconds without a byte after which the link is dead
BEAT = 4.0  # seconds between two frames of ours
TOLERATED_SKEW_S = 2.0  # seconds; a smaller difference of clocks cannot be told from the link's delay
_LARGEST_SKEW_S = 1e10
_HELLO_TIMEOUT_S = 120.0  # seconds for what login scripts print and the host's first words; a disk may be slow
_FIRST_TRIES = 2  # more of them before the host has ever answered are of no use
_RETRY_DELAYS_S = (0.2, 1.0, 2.0, 5.0, 10.0)  # seconds between two tries, the last one again and again
_STABLE_LINK_S = 10.0  # seconds after which a link counts as one that worked
_TICKS = 10  # looks within a silence: after a nap of this machine the host gets most of them again
_CHUNK = 1 << 18
_QUOTED = 300  # characters of the host's own words in a message
_MAX_MESSAGE = 2000  # characters of a refusal
_GREETING = 1 << 20  # bytes that a login script may print before we give up on it
_QUIET_HINT = "let it end early where there is no terminal; at the top of ~/.bashrc: [[ $- == *i* ]] || return"
_PYTHON_HINT = "ci-tasks needs Python 3.8 or newer as python3 on the host"
_now = time.time

T = TypeVar("T")
TakeUpdate = Callable[[RunUpdate], None]
TakeLog = Callable[[int, int, bytes], None]
TakeChunk = Callable[[bytes], None]


class RequestRefused(Blocked):
    """The host cannot do what was asked; `code` is the host's, for our code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(printable(message[:_MAX_MESSAGE]))
        self.code = code


class AgentMissing(Exception):
    """The host does not have our agent any more: it has to be sent along."""


class PendingRequest:
    """A response that is on its way; `on_chunk` takes the bytes that come with it, `settled` is called at its end."""

    def __init__(self, on_chunk: TakeChunk | None, settled: Callable[[], None]) -> None:
        self.on_chunk, self._settled = on_chunk, settled
        self._there = threading.Event()
        self.is_settled = self._there.is_set
        self._response: Response | str = ""

    def wait(self) -> Result:
        """Raises RequestRefused, LinkDied."""
        self._there.wait()
        if isinstance(self._response, str):
            raise LinkDied(self._response)
        if self._response.code:
            debug_log.LOGGER.debug("the host refused: %s", self._response.traceback or self._response.error)
            raise RequestRefused(self._response.code, self._response.error)
        return self._response.result

    def settle(self, response: Response | str) -> None:
        """`response`, or how the link died."""
        self._response = response
        self._there.set()
        self._settled()


class Channel:
    """One conversation. `take_update` and `take_log` are called in the thread that calls `read`. `archive` is the agent
    if the host needs it; None if a server runs at the other end already. `ready` is called as soon as requests can be
    posted. `was_refused`: the host's first words were a refusal, so that it handles no request."""

    def __init__(
        self,
        sock: socket.socket,
        archive: bytes | None,
        take_update: TakeUpdate,
        take_log: TakeLog,
        ready: Callable[[Channel], None] = lambda channel: None,
    ) -> None:
        self._sock, self._take_update, self._take_log, self._ready = sock, take_update, take_log, ready
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._reader = frames.FrameReader()
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._writing = threading.RLock()
        self._spoken = time.monotonic()
        self.died = threading.Event()
        self.reason, self.was_refused = "", False
        # An empty line is for a login script that reads one.
        first = frames.frame(frames.HEARTBEAT) if archive is None else b"\n" + bootstrap.header(len(archive)) + archive
        # In a thread, since a host that talks before it listens would have both wait for each other.
        threading.Thread(target=self._start, args=(first,), daemon=True, name="ci-tasks start").start()

    def _start(self, first: bytes) -> None:
        with contextlib.suppress(LinkDied):  # what the host says to `hello` tells more
            self._send(first)
            self._ready(self)

    # -- what the host says ------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Wait for the host's first words. Raises LinkDied, AgentMissing, HostDataError, Blocked."""
        try:
            return self._hello()
        except (RecordError, frames.FrameError) as error:
            raise HostDataError(printable(str(error)[:_MAX_MESSAGE])) from None
        except TimeoutError:  # a link that died at this very moment; the next one may live
            silence = f"not a word from the host for {SILENCE_TIMEOUT_S * 2:g} s"
            raise LinkDied(f"{silence}; does a login script there (~/.bashrc) wait or read standard input?") from None
        except (LinkDied, HostDataError):
            raise
        except (AgentMissing, Blocked):
            self.was_refused = True
            raise

    def _hello(self) -> Hello:
        deadline, data = time.monotonic() + _HELLO_TIMEOUT_S, b""

        def receive() -> bytes:
            chunk = self._receive(2 * _TICKS)
            if chunk and time.monotonic() > deadline:
                raise LinkDied(f"no answer of ci-tasks from the host within {_HELLO_TIMEOUT_S:g} s")
            if not chunk or len(data) > _GREETING:
                raise _no_hello(data.partition(frames.MAGIC)[0])
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
        chunk = b""
        try:
            while not self.died.is_set():
                for kind, payload in self._reader.feed(chunk):
                    self._take(kind, payload)
                chunk = self._receive(_TICKS)
                if not chunk:
                    break
            raise LinkDied(self.reason or "the connection was lost")
        except TimeoutError:
            raise LinkDied(f"not a word from the host for {SILENCE_TIMEOUT_S:g} s") from None
        except (frames.FrameError, RecordError) as error:
            raise HostDataError(printable(str(error)[:_MAX_MESSAGE])) from None

    def _receive(self, ticks: int) -> bytes:
        """What comes; nothing at the end. Raises TimeoutError, LinkDied."""
        for _ in range(ticks):
            if time.monotonic() - self._spoken > BEAT and self._writing.acquire(blocking=False):
                with contextlib.suppress(OSError):  # full: what is on its way says that we are here
                    self._spoken = time.monotonic()
                    self._sock.send(frames.frame(frames.HEARTBEAT), socket.MSG_DONTWAIT)
                self._writing.release()
            if self._readable.poll(1000 * SILENCE_TIMEOUT_S / _TICKS):
                try:
                    return self._sock.recv(_CHUNK)
                except OSError as error:
                    raise LinkDied(self.reason or str(error)) from None
        raise TimeoutError

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind in (frames.LOG, frames.PACKED_LOG):
            self._take_log(*frames.read_log(kind, payload))
        elif kind == frames.PART:
            number, chunk = frames.read_part(payload)
            on_chunk = self._pending[number].on_chunk if number in self._pending else None
            if on_chunk is not None:
                on_chunk(chunk)
        elif kind == frames.JSON:
            message = _understood(payload)
            if message.update is not None:
                self._take_update(message.update)
            if message.response is not None and message.response.id in self._pending:
                self._pending.pop(message.response.id).settle(message.response)

    # -- what we say -------------------------------------------------------------------------------------------------

    def post(
        self,
        request: Request,
        on_chunk: TakeChunk | None = None,
        pack: Iterable[bytes] | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> PendingRequest:
        """Ask, and go on. The bytes of a `pack` follow the request; nothing else comes in between. Raises LinkDied."""
        number = next(self._numbers)
        pending = self._pending[number] = PendingRequest(on_chunk, settled)
        debug_log.LOGGER.debug("request %d: %s", number, type(request).__name__)  # its fields may be secret
        with self._writing:
            self._send(frames.message(ClientMessage(number, request)))
            try:
                for chunk in () if pack is None else itertools.chain(pack, [b""]):
                    self._send(frames.frame(frames.DATA, chunk))
            except BaseException:  # the host would take whatever comes next for a part of it
                self.close("the pack broke off")
                raise
        return pending

    def leave(self) -> None:
        """Close it; its server may serve the next command."""
        if self._writing.acquire(blocking=False):
            with contextlib.suppress(LinkDied):
                self._send(frames.frame(frames.GOODBYE, os.urandom(16)))
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
            self._pending.pop(number).settle(self.reason)

    def _send(self, data: bytes) -> None:
        with self._writing:
            try:
                if not self.died.is_set():
                    self._sock.sendall(data)
                    self._spoken = time.monotonic()
            except OSError:
                self.close("the connection was lost")
        if self.died.is_set():
            self.close()  # what was posted meanwhile
            raise LinkDied(self.reason)


def _no_hello(data: bytes) -> Exception:
    text = printable(data.decode(errors="replace")).strip()
    last = shortened(text.splitlines()[-1], _QUOTED) if text else ""
    if len(data) > _GREETING:
        return Blocked(f"a login script on the host prints without end; its last line: {last}", hint=_QUIET_HINT)
    if "not found" in last.lower() or "python3" in last:
        return Blocked(f"no python3 there ({last})", hint=_PYTHON_HINT)
    if not last:
        return LinkDied("the host ended the connection before it said anything")
    return Blocked(f"the host does not answer as ci-tasks does; it said: {last}")


def _understood(payload: bytes) -> HostMessage:
    """A message of the host. A response or update that cannot be decoded becomes a refusal or a problem: it is one
    request's, or one run's. Raises RecordError."""
    data = parse(payload, where="message")
    try:
        return decode(HostMessage, data, where="message")
    except RecordError as error:
        for name, key in (("response", "id"), ("update", "key")):
            part = data.get(name) if isinstance(data, dict) else None
            number = part.get(key) if isinstance(part, dict) else None
            if type(number) is int and name == "response":
                return HostMessage(response=Response(number, error=str(error), code="failed"))
            if type(number) is int:
                return HostMessage(update=RunUpdate(number, problem=str(error)))
        raise


class ReconnectingConnection:
    """Connects at once, in a thread of its own. `messages` are lines for a person; `clock_ahead` are the seconds by
    which the host's clock is ahead of ours, known before the first response."""

    def __init__(
        self, spec: HostSpec, transport: Transport, cache_file: Path, take_update: TakeUpdate, take_log: TakeLog
    ) -> None:
        self.spec, self.cache, self._cache_file = spec, host_cache.load(cache_file), cache_file
        self.messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.clock_ahead = 0.0
        self._down_since: float | None = None
        self._transport, self._take = transport, (take_update, take_log)
        self._agent = archive.build()
        self._digest = archive.digest(self._agent)
        self._change = threading.Condition()
        self._channel: Channel | None = None
        self._hello: Hello | None = None
        self._problem: CiTasksError | None = None
        self._closing = threading.Event()
        threading.Thread(target=self._reconnect_loop, daemon=True, name="ci-tasks connection").start()

    @property
    def is_up(self) -> bool:
        return self._channel is not None and not self._channel.died.is_set()

    def channel(self) -> Channel:
        """The channel, as soon as requests can be posted. Raises the problem that prevents it for good."""
        with self._change:
            self._change.wait_for(lambda: self.is_up or self._problem)
            return self._or_problem(self._channel if self.is_up else None)

    def hello(self) -> Hello:
        """What the host said of itself: its home, Python and time. Raises what `channel` raises."""
        with self._change:
            self._change.wait_for(lambda: self._hello or self._problem)
            return self._or_problem(self._hello)

    def _or_problem(self, value: T | None) -> T:
        if value is None:
            assert self._problem is not None
            raise self._problem
        return value

    def request(self, request: Request, on_chunk: TakeChunk | None = None) -> Result:
        """Ask and wait, over a new link if the old one dies. Raises RequestRefused, and what `channel` raises."""
        while True:
            try:
                return self.channel().post(request, on_chunk).wait()
            except LinkDied:
                continue
            except RequestRefused as refusal:
                raise RequestRefused(refusal.code, f"{self.spec.name}: {refusal.message}") from None

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """The answers of programs of the host: see ci_tasks.hosts.queries.QueryRunner."""
        request = RunPrograms({name: tuple(argv) for name, argv in queries.items()}, timeout, self.spec.env)
        outputs = self.request(request).outputs
        if outputs.keys() != queries.keys():
            raise HostDataError(f"{self.spec.name} answered other questions than it was asked")
        return outputs

    def drain_messages(self) -> list[str]:
        return [self.messages.get() for _ in range(self.messages.qsize())]

    def close(self) -> None:
        with self._change:
            self._closing.set()
            channel = self._channel
        self._set(None, Blocked(f"the connection to {self.spec.name} was closed"))
        if channel is not None:
            channel.leave()
        self._transport.close()
        host_cache.save(self._cache_file, self.cache)

    # -- its thread -------------------------------------------------------------------------------------------------

    def _reconnect_loop(self) -> None:
        tries, failing_since, minutes = 0, time.monotonic(), self.spec.give_up_minutes
        while not self._closing.is_set() and self._problem is None:
            begun = time.monotonic()
            try:
                self._use_one_link()
            except Exception as problem:
                self._lost(problem, tries)
            if self._down_since is not None and self._down_since > begun + _STABLE_LINK_S:
                tries, failing_since = 0, self._down_since
            if time.monotonic() - failing_since > 60 * minutes:
                self._set(None, Blocked(f"no link to {self.spec.name} that lasts, for {minutes:g} minutes (--give-up)"))
            elif self._problem is None:
                self._closing.wait(_RETRY_DELAYS_S[min(tries, len(_RETRY_DELAYS_S) - 1)])
            tries += 1

    def _lost(self, problem: Exception, tries: int) -> None:
        """The link has died, or was not made. After the host has once answered, a network that is away or an agent that
        is locked will pass; another key will not, nor a host that is another than it was."""
        name = self.spec.name
        if not isinstance(problem, CiTasksError):
            what = debug_log.bug(f"connection to {name}", problem)
            self._set(None, InternalError(f"the connection to {name} failed: {what}"))
        elif isinstance(problem, LinkDied) and not self._hello and tries >= _FIRST_TRIES:
            self._set(None, Blocked(f"{name}: {problem}"))
        elif isinstance(problem, (HostKeyRefused, HostDataError)) or not (self._hello or isinstance(problem, LinkDied)):
            self._set(None, problem)
        elif not self._closing.is_set() and self._down_since is None:
            self._down_since = time.monotonic()
            goes_on = "; what runs there goes on" if self._hello else ""
            self.messages.put(f"the link to {name} is down ({problem.message}){goes_on}; trying again")

    def _use_one_link(self) -> None:
        """From the connection to its death. Raises LinkDied at the end, and what keeps the host from being used."""
        name = self.spec.name
        try:
            try:
                self._use_channel()
            except AgentMissing:
                self.cache.agent_digest = self.cache.compiled = self.cache.py_spy = ""
                self._use_channel()
        except AgentMissing:
            raise HostDataError(f"{name} asks for the agent that it was sent") from None
        except HostDataError as error:
            raise HostDataError(f"{name} sent what no host of ci-tasks sends: {error.message}") from None

    def _use_channel(self) -> None:
        cache, has_agent = self.cache, self.cache.agent_digest == self._digest
        compiled = cache.compiled if has_agent else ""
        command = bootstrap.command(self.spec.workspace, self._digest, compiled, self._transport.python)
        sock = self._transport.open(command)
        first = None if self._transport.is_server_running else b"" if has_agent else archive.packed(self._agent)
        channel, reason = Channel(sock, first, *self._take, self._set), "the host did not answer"
        try:
            if self._closing.is_set():  # `close` has not seen this one
                self._transport.close()
                raise LinkDied("closed")
            hello = self._greet(channel)
            cache.agent_digest, cache.compiled = self._digest, hello.agent
            if cache.home != hello.home:
                cache.clear_facts()
                cache.home = hello.home
            ahead = hello.time - _now()
            self.clock_ahead = ahead if TOLERATED_SKEW_S < abs(ahead) < _LARGEST_SKEW_S else 0.0
            self._hello = hello
            self._set(channel)
            if self._down_since is not None:
                seconds = time.monotonic() - self._down_since
                self.messages.put(f"the link to {self.spec.name} is back after {seconds:.0f} s")
                self._down_since = None
            channel.read()
        except (LinkDied, HostDataError) as error:
            reason = error.message
            raise
        finally:
            self._set(None)
            channel.close(reason)
            sock.close()

    def _greet(self, channel: Channel) -> Hello:
        try:
            return channel.hello()
        except Blocked as problem:
            if channel.was_refused:
                raise Blocked(f"{self.spec.name}: {problem.message}", hint=problem.hint) from None
            raise

    def _set(self, channel: Channel | None, problem: CiTasksError | None = None) -> None:
        with self._change:
            if channel is not None and self._closing.is_set():
                channel.close()  # `close` has not seen this one, and waits for the command at its other end
                channel = None
            self._channel = channel
            self._problem = self._problem or problem
            self._change.notify_all()
