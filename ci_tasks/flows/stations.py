"""The hosts of one command: each is asked, made ready and kept an eye on in a thread of its own.

With one host a command does all that itself, before its rows: what is wrong there ends the command. Of several hosts
the ready ones begin, whatever the others do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from ci_tasks.errors import CiTasksError
from ci_tasks.flows.site import Code, Say, Site
from ci_tasks.model import HostSpec, Row
from ci_tasks.plan.capacity import HostFacts, missing

if TYPE_CHECKING:
    from ci_tasks.hosts.survey import Survey
    from ci_tasks.plan.planner import Setup

_EVERY = 20.0  # seconds between two looks at what others hold there
GIVE_UP = 3600.0  # seconds without a link after which no row waits for the host any longer
_LAST_WORDS = 30.0  # seconds that the threads may take to let go of what they hold


@dataclass
class Station:
    """A host that takes part. `facts` are None until it has answered; `problem` says why nothing can run there;
    `note` what it does before its rows begin; `without` which rows lack a download there, and why. While
    it `holds` something for its rows, such as their venv, its thread is waited for."""

    site: Site
    code: Code
    facts: HostFacts | None = None
    problem: str = ""
    note: str = "connecting"
    is_ready: bool = False
    holds: bool = False
    locked: frozenset[int] = frozenset()
    images: frozenset[str] = frozenset()
    without: Mapping[str, str] = field(default_factory=dict)
    _lacking: dict[tuple[int, bool], tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        return self.spec.name

    @property
    def spec(self) -> HostSpec:
        return self.site.spec

    @property
    def is_decided(self) -> bool:
        """Whether it is known what can run there."""
        return self.facts is not None or bool(self.problem)

    def lacks(self, row: Row) -> tuple[str, ...]:
        """What keeps `row` from running there, as far as is known."""
        if self.problem or self.facts is None:
            return (self.problem,) if self.problem else ()
        wants = (row.gpus or 0, bool(row.image))
        if wants not in self._lacking:
            self._lacking[wants] = tuple(missing(row, self.spec, self.facts))
        return (*self._lacking[wants], *((self.without[row.row],) if row.row in self.without else ()))


@dataclass(frozen=True)
class Needs:
    """What the rows of a command want of a host: see Site.facts. `setups` are the install steps that they share there,
    `images` what they run in, each with the names of its rows. `stock` brings what they will download, and says which
    rows would lack something."""

    gpus: int
    container: bool
    simulates: bool
    python: str
    images: Mapping[str, tuple[str, ...]]
    setups: Callable[[Station], Sequence[Setup]]
    stock: Callable[[Station, Say], Mapping[str, str]] | None = None


class Stations:
    """The threads of several hosts, until the block ends."""

    def __init__(self, stations: Sequence[Station], needs: Needs, reuse: bool) -> None:
        self.stations = stations
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._needs, self._reuse = needs, reuse
        self._over, self._given_up = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._attend, args=(station,), daemon=True, name=f"ci-tasks {station.name}")
            for station in stations
        ]

    def __enter__(self) -> Stations:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._given_up.set()
        until = time.monotonic() + _LAST_WORDS
        for thread, station in zip(self._threads, self.stations, strict=True):
            worth = station.holds and station.site.is_up
            thread.join(max(0.0, until - time.monotonic()) if worth else 0.0)

    def give_up(self) -> None:
        """Nobody waits for install steps any more."""
        self._given_up.set()

    def said(self) -> list[str]:
        """What a person should hear of the hosts since the last call."""
        lines = []
        while not self._told.empty():
            lines.append(self._told.get())
        return lines

    def _attend(self, station: Station) -> None:
        """A host's whole story beside its rows."""
        try:
            facts = ask(station, self._needs)
            self._bring_stock(station)
            station.facts = facts
            self._look(station)
            self._pull(station)
            station.note, station.holds = "install steps", True
            with station.site.ready(self._needs.setups(station), self._reuse, self._say(station), self._wanted) as why:
                if why:
                    raise CiTasksError(why)
                station.is_ready, station.note = True, ""
                self._keep_an_eye_on(station)
        except KeyboardInterrupt:
            station.problem = "cancelled"
        except CiTasksError as problem:
            self._lose(station, problem.message)
        except OSError as error:
            self._lose(station, str(error))
        except Exception as bug:  # the others go on
            self._lose(station, repr(bug))

    def _bring_stock(self, station: Station) -> None:
        if self._needs.stock:
            station.note = "prefetching"
            station.without = self._needs.stock(station, self._say(station))

    def _pull(self, station: Station) -> None:
        """The images that the host lacks, once for all rows. Rows whose image cannot be had need not go there."""
        from ci_tasks.hosts import survey as surveys

        absent = [image for image in self._needs.images if image not in station.images]
        asked = surveys.pulls(station.spec, absent) if not station.site.queues else {}
        if not asked:
            return
        station.note = f"pulling {', '.join(asked)}"
        self._say(station)(station.note)
        answers = station.site.ask(asked, surveys.PULL_PATIENCE)
        refused = {image: answer.said for image, answer in answers.items() if answer.code != 0}
        lost = {row: f"image {image}: {said}" for image, said in refused.items() for row in self._needs.images[image]}
        station.without = {**station.without, **lost}
        station.images |= {image for image in answers if image not in refused}

    def _keep_an_eye_on(self, station: Station) -> None:
        seen = time.monotonic()
        while not self._over.wait(_EVERY):
            self._look(station)
            if station.site.is_up:
                seen = time.monotonic()
            elif time.monotonic() > seen + GIVE_UP:
                raise CiTasksError(f"no link for {GIVE_UP / 60:g} minutes")

    def _lose(self, station: Station, why: str) -> None:
        station.problem = why
        if not self._given_up.is_set():
            self._told.put(f"{station.name} takes no part: {why}")

    def _look(self, station: Station) -> None:
        """What others hold there is a hint; a host that does not answer is heard of elsewhere."""
        if not station.site.is_up:
            return
        try:
            found = survey(station, list(self._needs.images))
        except CiTasksError:
            return
        station.locked, station.images = found.locked, found.images

    def _say(self, station: Station) -> Callable[[str], None]:
        return lambda text: self._told.put(f"{station.name}: {text}")

    def _wanted(self) -> bool:
        return not self._given_up.is_set()


def ask(station: Station, needs: Needs) -> HostFacts:
    """What a host offers. Raises Blocked for one that cannot be reached, or has not the Python that CI asks for."""
    found = station.site.facts(gpus=needs.gpus, container=needs.container, simulates=needs.simulates)
    station.site.python(needs.python)
    return found


def survey(station: Station, images: Sequence[str]) -> Survey:
    """How the host stands just now; a host with a scheduler of its own is not looked at."""
    from ci_tasks.hosts import survey as surveys

    if station.site.queues:
        return surveys.Survey()
    asked: Mapping[str, Sequence[str]] = surveys.questions(station.spec, images)
    return surveys.parse(station.site.ask(asked, surveys.PATIENCE)) if asked else surveys.Survey()
