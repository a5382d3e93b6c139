"""Runs on a host over SSH: each is sent, watched, brought home and cleared away, whatever becomes of the link.

Every run has a thread that tells its whole story, `_live`. The host owns the truth; what is here is its mirror.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.channel import Channel, HostRefused, Pending
from ci_tasks.hosts.errand import CLEARING, DONE, FETCHING, KILL, SENDING, WATCHING, Errand, Pack, remember
from ci_tasks.hosts.line import Line
from ci_tasks.hosts.link import LinkDied
from ci_tasks.hosts.mirror import Mirror, hold, note
from ci_tasks.hosts.sender import Sender, post_watch
from ci_tasks.model import BLOCKED, CANCELLED, LOST
from ci_tasks.runner.link.bundle import BundleError

__all__ = ["CLEARING", "DONE", "FETCHING", "SENDING", "WATCHING", "Box", "Errand", "Pack", "remember"]
_GLANCE = 0.05
_LAST_WORDS = 15.0  # seconds that what is left to be cleared away gets at the end
_IN_MEMORY = 1 << 22


class Box:
    """The runs of one command on one host. `line` is its connection, made with `news` and `log` of ours."""

    def __init__(
        self, open_line: Callable[[Callable[[dict[str, Any]], None], Callable[[int, int, bytes], None]], Line]
    ):
        self._errands: dict[int, Errand] = {}
        self._sender = Sender()
        self._threads: list[threading.Thread] = []
        # No Event: ^C in the middle of its wait can leave its lock held, or have it let go of twice.
        self._heard: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.line = open_line(self._news, self._log)

    def load(self, packs: list[Pack]) -> None:
        """The code that runs which begin from now on need."""
        self._sender.load(packs)

    def begin(self, errand: Errand) -> None:
        """Send a run and start it there. Returns at once; `errand` says what becomes of it."""
        self._live_in_thread(errand)

    def attach(self, errand: Errand) -> None:
        """Watch a run that began earlier."""
        errand.step = WATCHING
        self._live_in_thread(errand)

    def end(self, errand: Errand, how: str) -> None:
        """Ask for the run's end: CANCEL, or KILL, which waits for nothing. The host hears of it when it can; a second
        KILL waits for the host no more."""
        again = how == KILL and errand.end_wanted == KILL
        errand.end_wanted = how
        with self._sender.asking:
            if errand.step == SENDING and not errand.tried and errand.never is None:
                self._nothing_there(errand, CANCELLED, "cancelled")
        if how == KILL and (again or not self.line.is_up):
            self._left_behind(errand)

    def wait(self, seconds: float) -> None:
        """Until something is heard of the runs, at most so long."""
        with suppress(queue.Empty):
            self._heard.get(timeout=seconds)

    def leave(self) -> None:
        """Stop watching; the runs go on."""
        for errand in self._errands.values():
            errand.detached = True
        self._finish(lambda errand: True)

    def close(self) -> None:
        """Let what is being ended or cleared away come to its end, then hang up."""
        self._finish(lambda errand: errand.step == CLEARING or bool(errand.end_wanted))
        self.line.save()
        self.line.close()
        for errand in self._errands.values():
            if errand.mirror is not None:
                errand.mirror.close()
            if errand.held is not None:
                errand.held.release()
                errand.held = None

    def _finish(self, concerned: Callable[[Errand], bool]) -> None:
        """Wait for threads, for a while, and only as long as there is a link."""
        until = time.monotonic() + _LAST_WORDS
        for thread, errand in zip(self._threads, self._errands.values(), strict=True):
            while thread.is_alive() and errand.never is None and concerned(errand):
                if not self.line.is_up or time.monotonic() > until:
                    return
                thread.join(_GLANCE)

    # -- one run ------------------------------------------------------------------------------------------------------

    def _live_in_thread(self, errand: Errand) -> None:
        errand.key = len(self._errands) + 1
        self._errands[errand.key] = errand
        errand.held = errand.held or hold(errand.run)
        errand.mirror = Mirror(errand.run)
        thread = threading.Thread(target=self._live, args=(errand,), daemon=True, name=f"ci-tasks run {errand.key}")
        self._threads.append(thread)
        thread.start()

    def _live(self, errand: Errand) -> None:
        while errand.step != DONE and errand.never is None:
            try:
                channel = self.line.channel()
                try:
                    self._go_on(errand, channel)
                except HostRefused as refusal:
                    self._refused(errand, channel, refusal)
            except LinkDied:
                if errand.end_wanted == KILL:
                    self._left_behind(errand)
            except HostRefused as refusal:  # it does not even clear away
                self._stop(errand, refusal.message)
            except CiTasksError as problem:
                self._stop(errand, problem.message)
            except OSError as error:
                self._stop(errand, f"{errand.run.path}: {error.strerror}", BLOCKED)
            except Exception as bug:
                self._stop(errand, f"{errand.run.path}: {bug!r}")
        self._wake()

    def _go_on(self, errand: Errand, channel: Channel) -> None:
        if errand.step == SENDING:
            if errand.end_wanted:
                self._take_back(errand, channel)
            else:
                self._sender.send(errand, channel)
            if errand.never is not None:
                return
            errand.step = WATCHING  # from here on it runs, whatever else goes wrong
            self._sender.sent(channel)
        elif errand.step == WATCHING:
            self._watch(errand, channel)
        if errand.step == WATCHING and errand.detached:
            errand.step = DONE
        elif errand.step == WATCHING and self._wait(errand, channel):
            errand.step = FETCHING
        if errand.step == FETCHING:
            self._fetch(errand, channel)
        if errand.step == CLEARING:
            if not errand.stays and not (errand.mirror and errand.mirror.status.get("kept")):
                self._clear(errand, channel)
            errand.step = DONE

    def _take_back(self, errand: Errand, channel: Channel) -> None:
        """Of a run that is not wanted any more, nothing is left there, unless it has begun: then it is to be ended."""
        if errand.tried:
            try:
                self._watch(errand, channel)
                return
            except HostRefused:
                self._clear(errand, channel)
        self._nothing_there(errand, CANCELLED, "cancelled")

    def _clear(self, errand: Errand, channel: Channel) -> None:
        channel.post("clear", dir=errand.directory, shared=not errand.shares).wait()

    def _watch(self, errand: Errand, channel: Channel) -> None:
        post_watch(errand, channel).wait()

    def _wait(self, errand: Errand, channel: Channel) -> bool:
        """Until the run is over (true), or is to go on without us. Raises LinkDied."""
        assert errand.mirror is not None
        errand.end_asked = ""
        while not errand.mirror.over.wait(_GLANCE):
            if channel.died.is_set():
                raise LinkDied(channel.reason)
            if errand.end_wanted != errand.end_asked:
                errand.end_asked = errand.end_wanted
                channel.post(errand.end_wanted, dir=errand.directory)
            if errand.detached:
                errand.step = DONE
            if errand.step == DONE or errand.never is not None:
                return False
        return True

    def _fetch(self, errand: Errand, channel: Channel) -> None:
        mirror = errand.mirror
        assert mirror is not None
        if mirror.error:
            self._give_up(errand, BLOCKED, f"{mirror.error}; the run is kept on {self.line.spec.name}")
            return
        if not mirror.is_whole() and not errand.fetched_again:
            errand.fetched_again, errand.step = True, WATCHING
            mirror.again()
            return
        if not mirror.is_whole():
            self._give_up(errand, BLOCKED, "the log here is not the log there, though it was fetched twice")
            return
        self._collect(errand, channel, mirror)
        if errand.never is None:
            mirror.finish()
            errand.step = CLEARING
            self._wake()

    def _collect(self, errand: Errand, channel: Channel, mirror: Mirror) -> None:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=errand.run.path) as spool:

            def keep(chunk: bytes) -> None:
                try:
                    spool.write(chunk)
                except OSError as error:
                    mirror.error = f"cannot write {errand.run.path}: {error.strerror}"

            self._unless_killed(errand, channel.post("collect", keep, dir=errand.directory))
            spool.seek(0)
            try:
                mirror.unpack(spool)
            except BundleError as problem:
                errand.remark = f"artifacts were not taken over: {problem}"
            except OSError as error:
                mirror.error = mirror.error or f"cannot write {errand.run.path}: {error.strerror}"
        if mirror.error:
            self._give_up(errand, BLOCKED, f"{mirror.error}; the run is kept on {self.line.spec.name}")

    def _unless_killed(self, errand: Errand, pending: Pending) -> None:
        """The answer; but a person who wants to be gone does not wait for ever. Raises what `wait` raises."""
        until = None
        while not pending.is_there(_GLANCE):
            if errand.end_wanted == KILL:
                until = until or time.monotonic() + _LAST_WORDS
                if time.monotonic() > until:
                    raise LinkDied("the host takes too long")
        pending.wait()

    def _refused(self, errand: Errand, channel: Channel, refusal: HostRefused) -> None:
        if refusal.code == "missing-base" and errand.step == SENDING and self._sender.sends_again(errand):
            return
        if refusal.code == "elsewhere":
            self.line.memory.forget_facts()
            self._stop(errand, refusal.message, BLOCKED if errand.step == SENDING else LOST)
        elif errand.step == SENDING:
            self._clear(errand, channel)  # half of it may be there
            self._nothing_there(errand, BLOCKED, refusal.message)
        elif errand.step == WATCHING and refusal.code == "missing":
            self._missing(errand, channel, refusal)
        else:
            self._stop(errand, refusal.message)

    def _missing(self, errand: Errand, channel: Channel, refusal: HostRefused) -> None:
        """The run is not there: somebody has removed it, or it never began, since its client went away too early."""
        name = self.line.spec.name
        if errand.mirror is not None and errand.mirror.status:
            self._nothing_there(errand, LOST, refusal.message)
            return
        if not errand.stays:
            self._clear(errand, channel)
        self._nothing_there(errand, LOST, f"it never began on {name}: the command that sent it went away before")

    def _stop(self, errand: Errand, why: str, status: str = "") -> None:
        """What cannot go on. A run that is home stays so, and of one that was never asked for nothing is lost."""
        if errand.step == CLEARING:
            errand.remark, errand.step = f"could not be cleared away: {why}", DONE
        else:
            begun = errand.step != SENDING or errand.tried
            self._give_up(errand, status or (LOST if begun else BLOCKED), why)

    def _left_behind(self, errand: Errand) -> None:
        """A person leaves, and the host does not hear of it."""
        name = self.line.spec.name
        if errand.step in (CLEARING, DONE):
            errand.step = DONE
        elif errand.step == FETCHING:
            self._give_up(errand, LOST, f"left before all of it was here; `ci-tasks fetch` brings it from {name}")
        elif errand.never is None:
            why = f"left while {name} did not answer; `ci-tasks cancel` ends it when {name} can be reached"
            self._give_up(errand, LOST, why)

    def _nothing_there(self, errand: Errand, status: str, reason: str) -> None:
        """It has no end of its own, and nobody needs to come back for it."""
        try:
            note(errand.run, complete=True)
        except OSError:
            pass
        self._give_up(errand, status, reason)

    def _give_up(self, errand: Errand, status: str, reason: str) -> None:
        errand.never = (status, reason)
        self._wake()

    def _wake(self) -> None:
        """Whoever waits looks again; one word is enough, however much is heard meanwhile."""
        if self._heard.empty():
            self._heard.put(None)

    # -- the line's thread -------------------------------------------------------------------------------------------

    # One run's trouble here is not another's: whatever a mirror cannot take ends its own run only.

    def _news(self, said: dict[str, Any]) -> None:
        self._tell(said.get("key", 0), lambda mirror: mirror.news(said))

    def _log(self, key: int, offset: int, chunk: bytes) -> None:
        self._tell(key, lambda mirror: mirror.log(offset, chunk))

    def _tell(self, key: int, tell: Callable[[Mirror], None]) -> None:
        errand = self._errands.get(key)
        if errand is None or errand.mirror is None:
            return
        try:
            tell(errand.mirror)
        except Exception as error:
            errand.mirror.fail(f"cannot take what came: {error!r}")
        self._wake()
