"""Runs on a host over SSH: each is sent, watched, brought home and cleared away, whatever becomes of the link.

Every run has a thread that tells its whole story, `_live`. The host owns the truth; what is here is its mirror.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.channel import Channel, HostRefused, Pending
from ci_tasks.hosts.line import Line
from ci_tasks.hosts.link import LinkDied
from ci_tasks.hosts.mirror import Held, Mirror, hold, note
from ci_tasks.model import BLOCKED, CANCELLED, LOST, HostSpec
from ci_tasks.runner.bundle import BundleError
from ci_tasks.runner.layout import RunDir
from ci_tasks.runner.service import form_of

SENDING, WATCHING, FETCHING, CLEARING, DONE = "sending", "running", "fetching", "clearing", "done"
_GLANCE = 0.05
_LAST_WORDS = 15.0  # seconds that what is left to be cleared away gets at the end
_IN_MEMORY = 1 << 22


@dataclass(frozen=True)
class Pack:
    """A part of the code: `make(have)` gives its objects less those of the trees that the host has; `sent` is called
    when it is there."""

    tree: str
    make: Callable[[Sequence[str]], Iterable[bytes]]
    have: tuple[str, ...] = ()
    sent: Callable[[], None] = lambda: None


@dataclass
class Errand:
    """One run on the host. `directory` is its run directory there; `parts` name its checkout."""

    run: RunDir
    directory: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    script: str = ""
    parts: Sequence[Mapping[str, str]] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    stays: bool = False  # its directory there is not cleared away at the end
    step: str = SENDING
    never: tuple[str, str] | None = None  # status and reason of a run that has no end of its own here
    remark: str = ""  # what a person should know although the run has its end
    mirror: Mirror | None = None
    held: Held | None = None
    key: int = 0
    end_wanted: str = ""  # cancel or kill
    end_asked: str = ""
    again: bool = False
    detached: bool = False

    @property
    def is_home(self) -> bool:
        """Whether everything that is to come of the run is here."""
        return self.step in (CLEARING, DONE)


class Box:
    """The runs of one command on one host. `line` is its connection, made with `news` and `log` of ours."""

    def __init__(
        self, open_line: Callable[[Callable[[dict[str, Any]], None], Callable[[int, int, bytes], None]], Line]
    ):
        self._errands: dict[int, Errand] = {}
        self._packs: list[Pack] = []
        self._packs_on: Channel | None = None
        self._everything = False  # the host does not have what we thought it had
        self._sending = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._heard = threading.Event()
        self.line = open_line(self._news, self._log)

    def load(self, packs: list[Pack]) -> None:
        """The code that runs which begin from now on need."""
        self._packs, self._packs_on, self._everything = packs, None, False

    def begin(self, errand: Errand) -> None:
        """Send a run and start it there. Returns at once; `errand` says what becomes of it."""
        self._live_in_thread(errand)

    def attach(self, errand: Errand) -> None:
        """Watch a run that began earlier."""
        errand.step = WATCHING
        self._live_in_thread(errand)

    def end(self, errand: Errand, how: str) -> None:
        """Ask for the run's end: `cancel`, or `kill`, which waits for nothing. The host hears of it when it can."""
        errand.end_wanted = how
        if how == "kill" and not self.line.is_up and not errand.is_home:
            name = self.line.spec.name
            why = f"left while the link to {name} was down; `ci-tasks cancel` ends it when {name} can be reached"
            self._give_up(errand, LOST, why)

    def wait(self, seconds: float) -> None:
        """Until something is heard of the runs, at most so long."""
        self._heard.wait(seconds)
        self._heard.clear()

    def leave(self) -> None:
        """Stop watching; the runs go on."""
        for errand in self._errands.values():
            errand.detached = True
        for thread in self._threads:
            thread.join(_LAST_WORDS)

    def close(self) -> None:
        """Let what is being cleared away come to its end, then hang up."""
        if self.line.is_up:
            for thread, errand in zip(self._threads, self._errands.values(), strict=True):
                if errand.step == CLEARING:
                    thread.join(_LAST_WORDS)
        self.line.save()
        self.line.close()
        for errand in self._errands.values():
            if errand.mirror is not None:
                errand.mirror.close()
            if errand.held is not None:
                errand.held.release()
                errand.held = None

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
                self._go_on(errand, self.line.channel())
            except LinkDied:
                continue
            except HostRefused as refusal:
                self._refused(errand, refusal)
            except CiTasksError as problem:
                self._give_up(errand, BLOCKED if errand.step == SENDING else LOST, problem.message)
            except Exception as bug:
                self._give_up(errand, LOST, f"{errand.run.path}: {bug!r}")

    def _go_on(self, errand: Errand, channel: Channel) -> None:
        if errand.step == SENDING:
            if errand.end_wanted:
                self._give_up(errand, CANCELLED, "cancelled")
                return
            self._send(errand, channel)
            errand.step = WATCHING
        elif errand.step == WATCHING:
            self._watch(errand, channel)
        if errand.detached:
            errand.step = DONE
        elif errand.step == WATCHING and self._wait(errand, channel):
            errand.step = FETCHING
        if errand.step == FETCHING:
            self._fetch(errand, channel)
        if errand.step == CLEARING:
            if not errand.stays and not (errand.mirror and errand.mirror.status.get("kept")):
                channel.post("clear", dir=errand.directory).wait()
            errand.step = DONE

    def _send(self, errand: Errand, channel: Channel) -> None:
        """Everything at once, without waiting for an answer in between."""
        with self._sending:
            packs = self._packs if errand.parts and self._packs_on is not channel else []
            asked = [
                channel.post_pack(pack.make(() if self._everything else pack.have), form_of(pack.tree))
                for pack in packs
            ]
            if packs:
                self._packs_on = channel
            asked += [
                channel.post(
                    "create",
                    dir=errand.directory,
                    plan=errand.plan,
                    script=errand.script,
                    parts=list(errand.parts),
                    workspace=errand.plan.get("workspace"),
                ),
                channel.post("start", dir=errand.directory, secrets=dict(errand.secrets)),
                self._post_watch(errand, channel),
            ]
        _all(asked)
        for pack in packs:
            pack.sent()

    def _watch(self, errand: Errand, channel: Channel) -> None:
        self._post_watch(errand, channel).wait()

    def _post_watch(self, errand: Errand, channel: Channel) -> Pending:
        assert errand.mirror is not None
        return channel.post("watch", dir=errand.directory, key=errand.key, offset=errand.mirror.offset)

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
        if not mirror.is_whole() and not errand.again:
            errand.again, errand.step = True, WATCHING
            mirror.again()
            return
        if not mirror.is_whole():
            self._give_up(errand, BLOCKED, "the log here is not the log there, though it was fetched twice")
            return
        self._collect(errand, channel, mirror)
        if errand.never is None:
            mirror.finish()
            errand.step = CLEARING
            self._heard.set()

    def _collect(self, errand: Errand, channel: Channel, mirror: Mirror) -> None:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=errand.run.path) as spool:

            def keep(chunk: bytes) -> None:
                try:
                    spool.write(chunk)
                except OSError as error:
                    mirror.error = f"cannot write {errand.run.path}: {error.strerror}"

            channel.post("collect", keep, dir=errand.directory).wait()
            spool.seek(0)
            try:
                mirror.unpack(spool)
            except BundleError as problem:
                errand.remark = f"artifacts were not taken over: {problem}"
            except OSError as error:
                mirror.error = mirror.error or f"cannot write {errand.run.path}: {error.strerror}"
        if mirror.error:
            self._give_up(errand, BLOCKED, f"{mirror.error}; the run is kept on {self.line.spec.name}")

    def _refused(self, errand: Errand, refusal: HostRefused) -> None:
        if refusal.code == "missing-base" and errand.step == SENDING:
            with self._sending:
                if not self._everything:
                    self._everything, self._packs_on = True, None
                    return
                if not errand.again:  # another run of ours has sent everything meanwhile
                    errand.again = True
                    return
        if refusal.code == "elsewhere":
            self.line.memory.forget_facts()
        if errand.step == CLEARING:
            errand.remark, errand.step = f"could not be cleared away: {refusal.message}", DONE
            return
        self._give_up(errand, BLOCKED if errand.step == SENDING else LOST, refusal.message)

    def _give_up(self, errand: Errand, status: str, reason: str) -> None:
        errand.never = (status, reason)
        self._heard.set()

    # -- the line's thread -------------------------------------------------------------------------------------------

    def _news(self, said: dict[str, Any]) -> None:
        errand = self._errands.get(said.get("key", 0))
        if errand is not None and errand.mirror is not None:
            errand.mirror.news(said)
            self._heard.set()

    def _log(self, key: int, offset: int, chunk: bytes) -> None:
        errand = self._errands.get(key)
        if errand is not None and errand.mirror is not None:
            errand.mirror.log(offset, chunk)
            self._heard.set()


def _all(asked: Sequence[Pending]) -> None:
    """Every answer, so that the first refusal is the one that is raised."""
    for pending in asked:
        pending.wait()


def remember(run: RunDir, spec: HostSpec, directory: str, *, adopted: bool = False) -> None:
    """Note in the mirror where the run is, before anything is sent: whoever comes later finds it. An adopted one was
    begun by somebody else, who will want to bring it home as well."""
    os.makedirs(run.path, exist_ok=True)
    where = {"host": spec.name, "address": spec.address, "workspace": spec.workspace, "directory": directory}
    note(run, **where, adopted=adopted, complete=False)
