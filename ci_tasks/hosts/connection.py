"""A connection to a host's server that comes back: requests out, responses, updates and logs in.

The host says something every two seconds, so a silent link is dead. Requests go out without waiting for earlier
responses, before the host has answered at all. A laptop that slept, a sshd that was restarted, a cut cable: the
connection says so once, tries again with growing pauses, and says when it is back. Every request may be repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import queue
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import BinaryIO, TypeVar

from ci_tasks import debug_log
from ci_tasks.agent import archive, protocol
from ci_tasks.agent.codec import RecordError, from_json
from ci_tasks.agent.files import UnsafeName
from ci_tasks.agent.protocol import Answer, Hello, Request
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.run_directory import read_if_readable, write_record
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CiTasksError, HostDataError, InternalError, printable, shortened
from ci_tasks.hosts import transport
from ci_tasks.hosts.transport import HostKeyRefused, LinkDied, Transport


@dataclass
class HostCache:
    """`home` is the directory of all our files on the host. `agent_digest` is the digest of the agent that it has,
    `compiled` the digest of the same agent with byte code. `pythons` are what setup-python's versions mean there,
    `working_runtime` is the container runtime that was found to work, `trees` the last ones that the host was sent,
    `pruned_at` when it last forgot old objects, in seconds since the epoch."""

    home: str = ""
    agent_digest: str = ""
    compiled: str = ""
    pythons: dict[str, tuple[str, str]] = field(default_factory=dict)
    gpus: int | None = None
    working_runtime: str = ""
    trees: tuple[str, ...] = ()
    pruned_at: float = 0.0

    def clear_facts(self) -> None:
        self.home, self.pythons, self.gpus, self.working_runtime = "", {}, None, ""


def host_id(spec: HostSpec) -> str:
    """A file name for the host: another address under the same name is another host."""
    return f"{spec.name}-{hashlib.sha256(f'{spec.address} {spec.workspace}'.encode()).hexdigest()[:10]}"


SILENCE_TIMEOUT_S = 10.0  # seconds without a byte after which the link is dead; twice that for the first words
BEAT = 4.0  # seconds between two frames of ours
_FIRST_TRIES = 2  # more of them before the host has ever answered are of no use
_RETRY_DELAYS_S = (0.2, 1.0, 2.0, 5.0, 10.0)  # seconds between two tries, the last one again and again
_STABLE_LINK_S = 10.0  # seconds after which a link counts as one that worked
_CHUNK = 1 << 18
_KEPT_TREES = 6  # of all checkouts; more bases cost time and save little
_QUOTED = 300  # characters of the host's own words in a message
_MAX_MESSAGE = 2000  # characters of a refusal
_GREETING = 1 << 20  # bytes that a login script may print before we give up on it

T = TypeVar("T")
Take = Callable[[bytes, int, bytes], object]  # the kind, offset and payload of a frame


class RequestRefused(Blocked):
    """The host cannot do what was asked; `code` is the host's, for our code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(printable(message[:_MAX_MESSAGE]))
        self.code = code


class AgentMissing(Exception):
    """The host does not have our agent any more: it has to be sent along."""


class PendingRequest:
    """An answer that is on its way; `take` takes what comes before it."""

    def __init__(self, take: Take) -> None:
        self.take, self._there = take, threading.Event()
        self._answer: Answer | str = ""

    def wait(self) -> Answer:
        """Raises RequestRefused, LinkDied."""
        self._there.wait()
        if isinstance(self._answer, str):
            raise LinkDied(self._answer)
        if self._answer.code:
            debug_log.debug("the host refused: %s", self._answer.traceback or self._answer.error)
            raise RequestRefused(self._answer.code, self._answer.error)
        return self._answer

    def settle(self, answer: Answer | str) -> None:
        """`answer`, or how the link died."""
        self._answer = answer
        self._there.set()


class Channel:
    """One conversation. `archive` is the agent if the host needs it; None if a server runs at the other end already.
    `ready` is called as soon as requests can be posted."""

    def __init__(
        self, sock: socket.socket, archive: bytes | None, ready: Callable[[Channel], None] = lambda channel: None
    ) -> None:
        self._sock, self._ready = sock, ready
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._reader = protocol.FrameReader()
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._writing = threading.RLock()  # a request with its pack
        self._sending = threading.Lock()  # a frame
        self._spoken = time.monotonic()
        self.died = threading.Event()
        self.reason = ""
        first = protocol.frame(protocol.HEARTBEAT) if archive is None else transport.first_bytes(archive)
        # In a thread, since a host that talks before it listens would have both wait for each other.
        threading.Thread(target=self._start, args=(first,), daemon=True, name="ci-tasks start").start()

    def _start(self, first: bytes) -> None:
        with contextlib.suppress(LinkDied):  # what the host says to `hello` tells more
            self._send(first)
            self._ready(self)

    # -- what the host says ------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Wait for the host's first words. Raises LinkDied, AgentMissing, FrameError, RecordError, Blocked."""
        data, is_greeting, deadline = b"", False, time.monotonic() + 3 * SILENCE_TIMEOUT_S
        while True:
            chunk = self._receive(2 * SILENCE_TIMEOUT_S)
            data += chunk
            if is_greeting or protocol.MAGIC in data:
                data = data if is_greeting else data.partition(protocol.MAGIC)[2]
                for kind, _, _, payload in self._reader.feed(data):
                    return self._greeted(kind, payload)
                data, is_greeting = b"", True
            if not chunk or len(data) > _GREETING or time.monotonic() > deadline:
                raise _no_hello(data)

    def _greeted(self, kind: bytes, payload: bytes) -> Hello:
        """The hello, or the refusal of the command that starts the agent."""
        if kind == protocol.HELLO:
            return from_json(Hello, payload, where="hello")
        if kind != protocol.ANSWER:
            raise protocol.FrameError("the first message is not a greeting")
        refusal = from_json(Answer, payload, where="hello")
        if refusal.code == transport.NO_AGENT:
            raise AgentMissing("it asks for the agent that it was sent")
        text, _, hint = refusal.error[:_MAX_MESSAGE].partition("\n")
        raise Blocked(printable(text), hint=printable(hint))

    def read(self) -> None:
        """Take what comes until the link dies. Raises LinkDied, FrameError, RecordError."""
        chunk = b""
        while not self.died.is_set():
            for frame in self._reader.feed(chunk):
                self._take(*frame)
            chunk = self._receive(SILENCE_TIMEOUT_S)
            if not chunk:
                break
        raise LinkDied(self.reason or "the connection was lost")

    def _receive(self, seconds: float) -> bytes:
        """What comes; nothing at the end. Raises LinkDied."""
        try:
            if not self._readable.poll(1000 * seconds):
                raise LinkDied(f"connection timed out ({seconds:g} s); does a login script wait for input?")
            chunk = self._sock.recv(_CHUNK)
        except OSError as error:
            raise LinkDied(self.reason or str(error)) from None
        # The host speaks every two seconds, so this needs no timer.
        # It comes between two pieces of a pack, too: git may need longer for the first one than the host waits.
        if time.monotonic() - self._spoken > BEAT and self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):  # full: what is on its way says that we are here
                self._spoken = time.monotonic()
                self._sock.send(protocol.frame(protocol.HEARTBEAT), socket.MSG_DONTWAIT)
            self._sending.release()
        return chunk

    def _take(self, kind: bytes, number: int, offset: int, payload: bytes) -> None:
        if kind == protocol.PACKED:
            kind, payload = protocol.DATA, unpacked(payload)
        if kind == protocol.ANSWER:
            answer = from_json(Answer, payload, where="answer")
            if number in self._pending:
                self._pending.pop(number).settle(answer)
        elif kind in (protocol.DATA, protocol.FILE, protocol.UPDATE) and number in self._pending:
            self._pending[number].take(kind, offset, payload)

    # -- what we say -------------------------------------------------------------------------------------------------

    def post(
        self, request: Request, take: Take = lambda *frame: None, pack: Iterable[bytes] | None = None
    ) -> PendingRequest:
        """Ask, and go on. The bytes of a `pack` follow the request; nothing else comes in between. Raises LinkDied."""
        number = next(self._numbers)
        pending = self._pending[number] = PendingRequest(take)
        debug_log.debug("request %d: %s", number, request.do)  # its fields may be secret
        with self._writing:
            self._send(protocol.message(protocol.REQUEST, number, request))
            try:
                for chunk in pack or ():
                    self._send(protocol.frame(protocol.DATA, chunk, number))
            finally:  # of a pack that broke off, too: the host refuses that one, and takes what comes next as it is
                if pack is not None:
                    self._send(protocol.frame(protocol.DATA, b"", number))
        return pending

    def leave(self) -> None:
        """Close it; its server may serve the next command."""
        if self._writing.acquire(blocking=False):
            with contextlib.suppress(LinkDied):
                self._send(protocol.frame(protocol.GOODBYE, os.urandom(16)))
            self._writing.release()
        self.close("closed")

    def close(self, reason: str = "the connection was lost") -> None:
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
                    with self._sending:
                        self._sock.sendall(data)
                        self._spoken = time.monotonic()
            except OSError:
                self.close()
        if self.died.is_set():
            self.close()  # what was posted meanwhile
            raise LinkDied(self.reason)


def unpacked(payload: bytes) -> bytes:
    """The bytes in a PACKED. Raises FrameError."""
    unpacking = zlib.decompressobj()
    try:
        chunk = unpacking.decompress(payload, protocol.MAX_UNPACKED)
    except zlib.error as error:
        raise protocol.FrameError(f"bytes that cannot be unpacked: {error}") from None
    if not unpacking.eof or unpacking.unused_data:
        most = protocol.MAX_UNPACKED
        raise protocol.FrameError(f"compressed data that is truncated, larger than {most} bytes, or followed by more")
    return chunk


class Receiver:
    """Writes the files of a run below a directory of the client, through no link, at most `max_bytes`."""

    def __init__(self, directory: str, max_bytes: int = 0) -> None:
        self.paths: list[str] = []
        self._top, self._room = os.path.realpath(directory), max_bytes or protocol.MAX_TOTAL
        self._out: BinaryIO | None = None

    def take(self, kind: bytes, _offset: int, payload: bytes) -> None:
        """Raises FrameError for what no host of ours sends: a path that leads elsewhere, or more than a run has; and
        OSError."""
        if kind == protocol.FILE:
            self.close()
            try:
                path = payload.decode()
                protocol.check_file_name(path)
                self._out = self._create(path)
            except (ValueError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                raise protocol.FrameError(f"a file {payload!r:.300}: {error}") from None
            self.paths.append(path)
        else:
            self._room -= len(payload)
        if self._out is None or self._room < 0 or len(self.paths) > protocol.MAX_FILES:
            raise protocol.FrameError(f"data for no file, for more than {protocol.MAX_FILES} files, or too much")
        if kind == protocol.DATA:
            self._out.write(payload)

    def _create(self, path: str) -> BinaryIO:
        target = os.path.join(self._top, path)
        directory = os.path.dirname(target)
        if os.path.realpath(directory) != directory:
            raise UnsafeName("it would be written through a link")
        os.makedirs(directory, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK  # to open a pipe would block
        return os.fdopen(os.open(target, flags, 0o644), "wb")

    def close(self) -> None:
        if self._out is not None:
            self._out.close()


def _no_hello(data: bytes) -> Blocked:
    """Why what came is no greeting of our server."""
    last = shortened(printable(data[-_MAX_MESSAGE:].decode(errors="replace")).strip().rpartition("\n")[2], _QUOTED)
    if not last:
        return LinkDied("the host closed the connection without an answer")
    if len(data) > _GREETING:
        hint = transport.QUIET_HINT
        return Blocked(f"a login script on the host prints endlessly; its last line: {last}", hint=hint)
    return Blocked(f"the host does not answer as ci-tasks expects; it said: {last}", hint=transport.PYTHON_HINT)


class ReconnectingConnection:
    """Connects at once, in a thread of its own. `messages` are lines for a person."""

    def __init__(self, spec: HostSpec, transport: Transport, cache_file: Path) -> None:
        self.spec, self._cache_file = spec, str(cache_file)
        self.cache = read_if_readable(HostCache, self._cache_file) or HostCache()
        self.messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._transport = transport
        self._agent = archive.build()
        self._digest = hashlib.sha256(self._agent).hexdigest()
        self._change = threading.Condition()
        self._channel: Channel | None = None
        self._hello: Hello | None = None
        self._problem: CiTasksError | None = None
        self._up_since = self._down_since = 0.0  # the last time; 0 if it is not up, or not down
        self._closing = threading.Event()
        threading.Thread(target=self._reconnect_loop, daemon=True, name="ci-tasks connection").start()

    @property
    def is_up(self) -> bool:
        return self._channel is not None and not self._channel.died.is_set()

    @property
    def has_answered(self) -> bool:
        """Whether the host has ever greeted us: one that refuses to handles no request."""
        return self._hello is not None

    def channel(self) -> Channel:
        """The channel, as soon as requests can be posted. Raises the problem that prevents it for good."""
        return self._wait_for(lambda: self._channel if self.is_up else None)

    def hello(self) -> Hello:
        """What the host said of itself: its home, Python and time. Raises what `channel` raises."""
        return self._wait_for(lambda: self._hello)

    def _wait_for(self, value: Callable[[], T | None]) -> T:
        with self._change:
            found = self._change.wait_for(lambda: value() or self._problem)
        assert found is not None
        if isinstance(found, CiTasksError):
            raise found
        return found

    def request(self, request: Request, take: Take = lambda *frame: None) -> Answer:
        """Ask and wait, over a new link if the old one dies. Raises RequestRefused, and what `channel` raises."""
        while True:
            try:
                return self.channel().post(request, take).wait()
            except LinkDied:
                continue
            except RequestRefused as refusal:
                raise RequestRefused(refusal.code, f"{self.spec.name}: {refusal.message}") from None

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """The answers of programs of the host: see ci_tasks.hosts.queries.QueryRunner."""
        commands = {name: tuple(argv) for name, argv in queries.items()}
        outputs = self.request(Request("programs", commands=commands, seconds=timeout, env=self.spec.env)).outputs
        if outputs.keys() != queries.keys():
            raise HostDataError(f"{self.spec.name} answered different questions")
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
        self._save_cache()

    def note_tree(self, tree: str) -> None:
        """The host has it now: what is sent later, by other commands too, is the difference."""
        if tree not in self.cache.trees[:1]:
            self.cache.trees = (tree, *(other for other in self.cache.trees if other != tree))[:_KEPT_TREES]
            self._save_cache()

    def _save_cache(self) -> None:
        with contextlib.suppress(OSError):  # a memory that cannot be written is no reason to stop
            os.makedirs(os.path.dirname(self._cache_file), exist_ok=True)
            write_record(self._cache_file, self.cache)

    # -- its thread -------------------------------------------------------------------------------------------------

    def _reconnect_loop(self) -> None:
        tries, failing_since, minutes = 0, time.monotonic(), self.spec.give_up_minutes
        while not self._closing.is_set() and self._problem is None:
            self._up_since = 0.0
            try:
                self._use_one_link()
            except Exception as problem:
                self._lost(problem, tries)
            if self._up_since and time.monotonic() > self._up_since + _STABLE_LINK_S:
                tries, failing_since = 0, time.monotonic()
            if time.monotonic() - failing_since > 60 * minutes:
                self._set(None, Blocked(f"no stable link to {self.spec.name} for {minutes:g} minutes (--give-up)"))
            elif self._problem is None:
                self._closing.wait(_RETRY_DELAYS_S[min(tries, len(_RETRY_DELAYS_S) - 1)])
            tries += 1
        self._transport.close()  # what was opened while `close` was called

    def _lost(self, problem: Exception, tries: int) -> None:
        """The link has died, or was not made. After the host has once answered, a network that is away or an agent that
        is locked will pass; another key will not, nor a host that is another than it was."""
        name, will_pass = self.spec.name, isinstance(problem, Blocked) and self._hello is not None
        if not isinstance(problem, CiTasksError):
            what = debug_log.bug(f"connection to {name}", problem)
            problem = InternalError(f"the connection to {name} failed: {what}")
        elif isinstance(problem, LinkDied) and not will_pass:
            will_pass = tries < _FIRST_TRIES
            problem = problem if will_pass else Blocked(f"{name}: {problem.message}", hint=problem.hint)
        if not will_pass or isinstance(problem, (HostKeyRefused, HostDataError)):
            self._set(None, problem)
        elif not self._closing.is_set() and not self._down_since:
            self._down_since = time.monotonic()
            goes_on = "; its runs continue" if self._hello else ""
            self.messages.put(f"the link to {name} is down ({problem.message}){goes_on}; trying again")

    def _use_one_link(self) -> None:
        """From the connection to its death. Raises LinkDied at the end, and what keeps the host from being used."""
        try:
            try:
                self._use_channel(has_agent=self.cache.agent_digest == self._digest)
            except AgentMissing:
                self._use_channel(has_agent=False)
        except (AgentMissing, protocol.FrameError, RecordError) as error:
            why = printable(str(error)[:_MAX_MESSAGE])
            raise HostDataError(f"{self.spec.name} sent an invalid message: {why}") from None

    def _use_channel(self, *, has_agent: bool) -> None:
        name, cache = self.spec.name, self.cache
        compiled = cache.compiled if has_agent else ""
        command = transport.start_command(self.spec.workspace, self._digest, compiled, self._transport.python)
        sock = self._transport.open(command)
        first = None if self._transport.is_server_running else b"" if has_agent else zlib.compress(self._agent, 6)
        channel = Channel(sock, first, self._set)
        try:
            hello = channel.hello()
            cache.agent_digest, cache.compiled = self._digest, hello.agent
            if cache.home != hello.home:
                cache.clear_facts()
                cache.home = hello.home
            self._hello, self._up_since = hello, time.monotonic()
            self._set(channel)
            if self._down_since:
                self.messages.put(f"the link to {name} is back after {time.monotonic() - self._down_since:.0f} s")
                self._down_since = 0.0
            channel.read()
        except LinkDied:
            raise
        except Blocked as problem:
            raise Blocked(f"{name}: {problem.message}", hint=problem.hint) from None
        finally:
            self._set(None)
            channel.close()
            sock.close()

    def _set(self, channel: Channel | None, problem: CiTasksError | None = None) -> None:
        with self._change:
            if channel is not None and self._closing.is_set():
                channel.close()  # `close` has not seen this one, and waits for the command at its other end
                channel = None
            self._channel = channel
            self._problem = self._problem or problem
            self._change.notify_all()
