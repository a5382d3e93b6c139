"""A connection to a host that comes back: whoever needs the channel waits until there is one.

A laptop that slept, a sshd that was restarted, a cut cable: the line says so once, tries again with growing pauses, and
says when it is back. What was asked meanwhile is asked again by those who wait for it; every request can be.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ci_tasks import debug_log
from ci_tasks.agent import archive
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.serving.messages import Hello, RequestFor, RunPrograms, RunUpdate
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CiTasksError, HostDataError, InternalError
from ci_tasks.hosts import bootstrap, host_cache
from ci_tasks.hosts.channel import AgentMissing, Channel, RequestRefused
from ci_tasks.hosts.ssh.messages import HostKeyRefused
from ci_tasks.hosts.transport import LinkDied, Transport

R = TypeVar("R")
_now = time.time

TOLERATED_SKEW_S = 2.0  # seconds; a smaller difference of clocks cannot be told from the link's delay
_LARGEST_SKEW_S = 1e10
_FIRST_TRIES = 2  # more of them before the host has ever answered are of no use
_RETRY_DELAYS_S = (0.2, 1.0, 2.0, 5.0, 10.0)  # seconds between two tries, the last one again and again
_STABLE_LINK_S = 10.0  # seconds after which a link counts as one that worked


class ReconnectingConnection:
    """Connects at once, in a thread of its own. `said` has what a person should hear of it."""

    def __init__(
        self,
        spec: HostSpec,
        transport: Transport,
        cache_file: Path,
        news: Callable[[RunUpdate], None],
        log: Callable[[int, int, bytes], None],
    ) -> None:
        self.spec = spec
        self.cache = host_cache.load(cache_file)
        self.messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.down_since: float | None = None
        self.was_refused = False  # the host could not be used from the beginning: nothing that was sent has begun
        self._clock_ahead = 0.0
        self._transport, self._cache_file = transport, cache_file
        self._news, self._log = news, log
        self._agent = archive.build()
        self._digest = archive.digest(self._agent)
        self._change = threading.Condition()
        self._channel: Channel | None = None
        self._hello: Hello | None = None
        self._problem: CiTasksError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._reconnect_loop, daemon=True, name="ci-tasks connection")
        self._thread.start()

    def channel(self) -> Channel:
        """The channel, as soon as there is one: words that are sent now travel before the host has answered at all.

        Raises the problem that keeps us from ever having one.
        """
        with self._change:
            self._change.wait_for(lambda: self.is_up or self._problem is not None)
            if self._channel is None or self._channel.died.is_set():
                assert self._problem is not None
                raise self._problem
            return self._channel

    def hello(self) -> Hello:
        """What the host said of itself: its home, Python and time. Raises the problem that keeps us from hearing it."""
        with self._change:
            self._change.wait_for(lambda: self._hello is not None or self._problem is not None)
            if self._hello is None:
                assert self._problem is not None
                raise self._problem
            return self._hello

    @property
    def clock_ahead(self) -> float:
        """Seconds by which the host's clock is ahead of ours, once it has said so: the answer to a request may be here
        before that is worked out. Raises what `hello` raises."""
        self.hello()
        return self._clock_ahead

    def request(self, request: RequestFor[R], take_part: Callable[[bytes], None] | None = None) -> R:
        """Ask and wait, over a new link where the old one dies. Raises RequestRefused, and what `channel` raises."""
        while True:
            try:
                return self.channel().post(request, take_part).wait()
            except LinkDied:
                continue
            except RequestRefused as refusal:
                raise RequestRefused(refusal.code, f"{self.spec.name}: {refusal.message}") from None

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """The answers of programs of the host: see ci_tasks.hosts.queries.Asker."""
        request = RunPrograms({name: tuple(argv) for name, argv in queries.items()}, timeout, self.spec.env)
        outputs = self.request(request).outputs
        if outputs.keys() != queries.keys():
            raise HostDataError(f"{self.spec.name} answered other questions than it was asked")
        return outputs

    def drain_messages(self) -> list[str]:
        lines = []
        while not self.messages.empty():
            lines.append(self.messages.get())
        return lines

    @property
    def is_up(self) -> bool:
        channel = self._channel
        return channel is not None and not channel.died.is_set()

    def save_cache(self) -> None:
        host_cache.save(self._cache_file, self.cache)

    def close(self) -> None:
        self._closing.set()
        with self._change:
            channel, self._channel = self._channel, None
            self._problem = self._problem or Blocked(f"the connection to {self.spec.name} was closed")
            self._change.notify_all()
        if channel is not None:
            channel.leave()
        self._transport.close()

    # -- its thread -------------------------------------------------------------------------------------------------

    def _reconnect_loop(self) -> None:
        tries = 0
        failing_since = time.monotonic()
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                self._use_one_link()
            except LinkDied as death:
                if not self._hello and tries >= _FIRST_TRIES:
                    self._end(Blocked(f"{self.spec.name}: {death}"))
                    return
                self._down(str(death))
            except CiTasksError as problem:
                # Once it has worked, a network that is away or an agent that is locked will pass; another key will not,
                # nor a host that is another than it was.
                if not self._hello or isinstance(problem, (HostKeyRefused, HostDataError)):
                    self._end(problem)
                    return
                self._down(problem.message)
            except Exception as bug:  # nobody may wait for ever
                what = debug_log.bug(f"connection to {self.spec.name}", bug)
                self._end(InternalError(f"the connection to {self.spec.name} failed: {what}"))
                return
            if self.down_since is not None and self.down_since > begun + _STABLE_LINK_S:
                tries, failing_since = 0, self.down_since
            minutes = self.spec.give_up_minutes
            if time.monotonic() - failing_since > 60 * minutes:
                self._end(Blocked(f"no link to {self.spec.name} that lasts, for {minutes:g} minutes (--give-up)"))
                return
            self._closing.wait(_RETRY_DELAYS_S[min(tries, len(_RETRY_DELAYS_S) - 1)])
            tries += 1

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
        finally:
            self._set(None)

    def _run_channel(self) -> None:
        has_agent = self.cache.agent_digest == self._digest
        compiled = self.cache.compiled if has_agent else ""
        command = bootstrap.command(self.spec.workspace, self._digest, compiled, self._transport.python)
        sock = self._transport.open(command)
        if self._closing.is_set():  # `close` has not seen this one
            sock.close()
            self._transport.close()
            raise LinkDied("closed")
        first = None if self._transport.is_server_running else b"" if has_agent else archive.packed(self._agent)
        channel = Channel(sock, first, self._news, self._log, self._set)
        try:
            hello = self._greet(channel)
            self._clock_ahead = _skew(hello.time, _now())
        except BaseException:
            self._set(None)
            channel.close("the host did not answer")
            raise
        self._set(channel)
        self.cache.agent_digest, self.cache.compiled = self._digest, hello.agent
        if self.cache.home != hello.home:
            self.cache.clear_facts()
            self.cache.home = hello.home
        self._up(hello)
        channel.died.wait()
        if channel.violation:
            raise HostDataError(channel.violation)
        raise LinkDied(channel.reason)

    def _greet(self, channel: Channel) -> Hello:
        try:
            return channel.hello()
        except (LinkDied, HostDataError):
            raise
        except Blocked as problem:
            self.was_refused = self._hello is None
            raise Blocked(f"{self.spec.name}: {problem.message}", hint=problem.hint) from None

    def _set(self, channel: Channel | None) -> None:
        with self._change:
            self._channel = None if self._closing.is_set() else channel
            self._change.notify_all()

    def _up(self, hello: Hello) -> None:
        with self._change:
            self._hello = hello
            debug_log.LOGGER.debug("%s: the link is up: %s", self.spec.name, hello)
            self._change.notify_all()
        if self.down_since is not None:
            self.messages.put(f"the link to {self.spec.name} is back after {time.monotonic() - self.down_since:.0f} s")
            self.down_since = None

    def _down(self, reason: str) -> None:
        if self._closing.is_set() or self.down_since is not None:
            return
        self.down_since = time.monotonic()
        debug_log.LOGGER.debug("%s: the link is down: %s", self.spec.name, reason)
        goes_on = "; what runs there goes on" if self._hello else ""
        self.messages.put(f"the link to {self.spec.name} is down ({reason}){goes_on}; trying again")

    def _end(self, problem: CiTasksError) -> None:
        with self._change:
            self._problem = problem
            self._change.notify_all()


def _skew(there: float, here: float) -> float:
    """0 for what may be the way from there to here, and for what no clock says."""
    ahead = there - here
    return ahead if TOLERATED_SKEW_S < abs(ahead) < _LARGEST_SKEW_S else 0.0
