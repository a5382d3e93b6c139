"""Which waiting rows may start now, and where: how rows and hosts stand, in the words of the placement."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ci_tasks.flows.course import Course
from ci_tasks.flows.prepare import Ready
from ci_tasks.flows.stations import Station
from ci_tasks.model import Row
from ci_tasks.plan.schedule import Machine, Running, Task, place

_REPLAN = 5.0  # seconds after which it is asked again where waiting rows belong, though nothing happened
_ALL = 1 << 20  # GPUs and rows of a host whose own scheduler decides


@dataclass(frozen=True)
class Allotted:
    """Rows to start now, each with its host and the reason; why the others wait; the expected seconds until all rows
    have ended, None where that cannot be said yet."""

    starts: Sequence[tuple[Course, Station, str]] = ()
    waits: Sequence[tuple[Course, str]] = ()
    left: float | None = None


class Allotment:
    """Asks the placement whenever something has happened that may let a row start. `jobs` bounds the rows at once on a
    host; else as many CPU rows as there are cores, and as many GPU rows as there are GPUs for."""

    def __init__(self, ready: Ready, courses: Sequence[Course], jobs: int | None) -> None:
        self._ready, self._courses, self._stations = ready, courses, ready.stations
        self._slots = jobs or (len(ready.rows) if any(row.gpus for row in ready.rows) else os.cpu_count() or 1)
        self._exclusive: dict[tuple[str | None, str, str | None], tuple[str, ...]] = {}
        self._hosts: dict[tuple[Any, ...], tuple[str, ...]] = {}  # of one decision, as is `kinds`
        self._kinds: dict[tuple[str, str | None], Station] = {}
        self._seen: list[tuple[Any, ...]] = []
        self._planned = -_REPLAN

    def has_changed(self) -> bool:
        """Whether something happened that may let a row start, or it is time to ask all the same."""
        seen = [(one.is_ready, one.problem, one.site.is_up, one.locked, one.is_decided) for one in self._stations]
        if seen == self._seen and time.monotonic() < self._planned + _REPLAN:
            return False
        self._seen, self._planned = seen, time.monotonic()
        return True

    def forget(self) -> None:
        """A row has ended, or waits again."""
        self._planned = -_REPLAN

    def is_hopeless(self, course: Course) -> bool:
        """Whether no host can ever run the row; of one that did not answer yet nothing is known."""
        return not any(course.may_run_on(station) for station in self._stations)

    def decide(self, waiting: Sequence[Course]) -> Allotted:
        """What starts now. Nothing, as long as no host is ready."""
        usable = {one.name: one for one in self._stations if one.is_ready and not one.problem}
        if not usable or not waiting:
            return Allotted()
        self._hosts = {}
        self._kinds = {(one.spec.runtime, one.spec.network): one for one in usable.values() if not one.site.queues}
        there: dict[str, list[Course]] = {}
        for course in self._courses:
            if course.station is not None:
                there.setdefault(course.station.name, []).append(course)
        tasks = [self._task(course) for course in waiting]
        decision = place(tasks, [self._machine(one, there.get(one.name, [])) for one in usable.values()])
        return Allotted(
            starts=[(waiting[start.task], usable[start.host], start.why) for start in decision.starts],
            waits=[(waiting[at], why) for at, why in decision.waits.items()],
            left=decision.left,
        )

    def _task(self, course: Course) -> Task:
        return Task(
            name=course.row.row,
            gpus=course.row.gpus or 0,
            seconds=course.seconds,
            exclusive=self._exclusive_of(course),
            hosts=self._hosts_of(course),
            image=self._ready.drafts.request.image or course.row.image,
            waited=time.monotonic() - course.asked,
        )

    def _hosts_of(self, course: Course) -> tuple[str, ...]:
        """Where it may run. Rows that want the same and were nowhere yet are many, and hosts may be."""
        row = course.row
        own = row.row if any(one.without for one in self._stations) else ""
        key = (row.gpus or 0, bool(row.image), own, *((one["host"], one.get("again")) for one in course.earlier))
        if key not in self._hosts:
            self._hosts[key] = tuple(one.name for one in self._stations if course.may_run_on(one))
        return self._hosts[key]

    def _exclusive_of(self, course: Course) -> tuple[str, ...]:
        """What the row cannot share with another one, on some host."""
        if not course.row.gpus:
            return ()
        names = (name for station in self._kinds.values() for name in self._names(course.row, station))
        return tuple(dict.fromkeys(names))

    def _names(self, row: Row, station: Station) -> tuple[str, ...]:
        """Rows of one test are alike in that, and so are hosts with one kind of containers."""
        key = (row.test, station.spec.runtime, station.spec.network)
        if key not in self._exclusive:
            self._exclusive[key] = self._ready.drafts.exclusive(row, station)
        return self._exclusive[key]

    def _machine(self, station: Station, had: Sequence[Course]) -> Machine:
        """`had` are the rows that were begun there last."""
        there = [course for course in had if course.runs]
        running = tuple(Running(self._task(course), time.monotonic() - course.since) for course in there)
        if station.site.queues:
            return Machine(station.name, _ALL, _ALL, up=station.site.is_up, running=running)
        assert station.facts is not None
        ours = sum(course.row.gpus or 0 for course in there)
        return Machine(
            name=station.name,
            gpus=station.facts.gpus,
            slots=self._slots,
            held=max(0, len(station.locked) - ours),
            up=station.site.is_up or len(self._stations) == 1,  # with one host, rows wait for it where they are
            images=station.images,
            has_code=bool(had),
            running=running,
        )
