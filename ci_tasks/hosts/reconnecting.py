"""A connection to a host that comes back: a thread that needs the channel waits until there is one.

A laptop that slept, a sshd that was restarted, a cut cable: the connection says so once, tries again with growing
pauses, and says when it is back. Requests of a dead link are asked again by those who wait; every request can be.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ci_tasks import debug_log
from ci_tasks.agent import archive
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.serving.messages import Hello, Request, Result, RunPrograms, RunUpdate
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CiTasksError, HostDataError, InternalError
from ci_tasks.hosts import bootstrap, host_cache
from ci_tasks.hosts.channel import AgentMissing, Channel, RequestRefused
from ci_tasks.hosts.ssh.messages import HostKeyRefused
from ci_tasks.hosts.transport import LinkDied, Transport

_now = time.time

TOLERATED_SKEW_S = 2.0  # seconds; a smaller difference of clocks cannot be told from the link's delay
_LARGEST_SKEW_S = 1e10
_FIRST_TRIES = 2  # more of them before the host has ever answered are of no use
_RETRY_DELAYS_S = (0.2, 1.0, 2.0, 5.0, 10.0)  # seconds between two tries, the last one again and again
_STABLE_LINK_S = 10.0  # seconds after which a link counts as one that worked


class ReconnectingConnection:
    """Connects at once, in a thread of its own. `messages` are lines for a person; `clock_ahead` are the seconds by
    which the host's clock is ahead of ours, known before the first response."""

    def __init__(
        self,
        spec: HostSpec,
        transport: Transport,
        cache_file: Path,
        news: Callable[[RunUpdate], None],
        log: Callable[[int, int, bytes], None],
    ) -> None:
        self.spec, self.cache = spec, host_cache.load(cache_file)
        self.messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.clock_ahead = 0.0
        self._down_since: float | None = None
        self._transport, self._cache_file, self._news, self._log = transport, cache_file, news, log
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
        """The channel, as soon as there is one: requests that are posted now travel before the host has answered at
        all. Raises the problem that prevents it for good."""
        with self._change:
            self._change.wait_for(lambda: self.is_up or self._problem)
            if self._channel is not None and self.is_up:
                return self._channel
            assert self._problem is not None
            raise self._problem

    def hello(self) -> Hello:
        """What the host said of itself: its home, Python and time. Raises what `channel` raises."""
        with self._change:
            self._change.wait_for(lambda: self._hello or self._problem)
            if self._hello is not None:
                return self._hello
            assert self._problem is not None
            raise self._problem

    def request(self, request: Request, on_chunk: Callable[[bytes], None] = lambda chunk: None) -> Result:
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

    def save_cache(self) -> None:
        host_cache.save(self._cache_file, self.cache)

    def close(self) -> None:
        self._closing.set()
        channel = self._channel
        self._set(None)
        self._fail(self._problem or Blocked(f"the connection to {self.spec.name} was closed"))
        if channel is not None:
            channel.leave()
        self._transport.close()

    # -- its thread -------------------------------------------------------------------------------------------------

    def _reconnect_loop(self) -> None:
        tries, failing_since = 0, time.monotonic()
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                self._use_one_link()
            except Exception as problem:
                if (final := self._final(problem, tries)) is not None:
                    self._fail(final)
                    return
                self._down(problem)
            now, minutes = time.monotonic(), self.spec.give_up_minutes
            if self._down_since is not None and self._down_since > begun + _STABLE_LINK_S:
                tries, failing_since = 0, self._down_since
            if now - failing_since > 60 * minutes:
                why = f"no link to {self.spec.name} that lasts, for {minutes:g} minutes (--give-up)"
                self._fail(Blocked(why))
                return
            self._closing.wait(_RETRY_DELAYS_S[min(tries, len(_RETRY_DELAYS_S) - 1)])
            tries += 1

    def _final(self, problem: Exception, tries: int) -> CiTasksError | None:
        """The error that ends all, if the next try is of no use. After the host has once answered, a network that is
        away or an agent that is locked will pass; another key will not, nor a host that is another than it was."""
        if isinstance(problem, LinkDied):
            return Blocked(f"{self.spec.name}: {problem}") if not self._hello and tries >= _FIRST_TRIES else None
        if isinstance(problem, CiTasksError):
            return problem if not self._hello or isinstance(problem, (HostKeyRefused, HostDataError)) else None
        what = debug_log.bug(f"connection to {self.spec.name}", problem)
        return InternalError(f"the connection to {self.spec.name} failed: {what}")

    def _use_one_link(self) -> None:
        """From the connection to its death. Raises LinkDied at the end, and what keeps the host from being used."""
        try:
            try:
                self._run_channel()
            except AgentMissing:
                self.cache.agent_digest = self.cache.compiled = self.cache.py_spy = ""
                self._run_channel()
        except AgentMissing:
            raise HostDataError(f"{self.spec.name} asks for the agent that it was sent") from None
        except HostDataError as error:
            raise HostDataError(f"{self.spec.name} sent what no host of ci-tasks sends: {error.message}") from None

    def _run_channel(self) -> None:
        has_agent = self.cache.agent_digest == self._digest
        compiled = self.cache.compiled if has_agent else ""
        sock = self._transport.open(
            bootstrap.command(self.spec.workspace, self._digest, compiled, self._transport.python)
        )
        first = None if self._transport.is_server_running else b"" if has_agent else archive.packed(self._agent)
        channel = Channel(sock, first, self._news, self._log, self._set)
        reason = "the host did not answer"
        try:
            if self._closing.is_set():  # `close` has not seen this one
                self._transport.close()
                raise LinkDied("closed")
            hello = self._greet(channel)
            self.cache.agent_digest, self.cache.compiled = self._digest, hello.agent
            if self.cache.home != hello.home:
                self.cache.clear_facts()
                self.cache.home = hello.home
            ahead = hello.time - _now()
            self.clock_ahead = ahead if TOLERATED_SKEW_S < abs(ahead) < _LARGEST_SKEW_S else 0.0
            self._up(channel, hello)
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
        except (LinkDied, HostDataError):
            raise
        except Blocked as problem:
            raise Blocked(f"{self.spec.name}: {problem.message}", hint=problem.hint) from None

    def _set(self, channel: Channel | None) -> None:
        with self._change:
            self._channel = None if self._closing.is_set() else channel
            self._change.notify_all()

    def _up(self, channel: Channel, hello: Hello) -> None:
        self._hello = hello
        debug_log.LOGGER.debug("%s: the link is up: %s", self.spec.name, hello)
        self._set(channel)
        if self._down_since is not None:
            self.messages.put(f"the link to {self.spec.name} is back after {time.monotonic() - self._down_since:.0f} s")
            self._down_since = None

    def _down(self, problem: Exception) -> None:
        if self._closing.is_set() or self._down_since is not None:
            return
        self._down_since = time.monotonic()
        reason = problem.message if isinstance(problem, CiTasksError) else str(problem)
        debug_log.LOGGER.debug("%s: the link is down: %s", self.spec.name, reason)
        goes_on = "; what runs there goes on" if self._hello else ""
        self.messages.put(f"the link to {self.spec.name} is down ({reason}){goes_on}; trying again")

    def _fail(self, problem: CiTasksError) -> None:
        with self._change:
            self._problem = problem
            self._change.notify_all()
