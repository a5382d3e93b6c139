"""Running rows on the hosts of a command: each as soon as a host has GPUs for it, until every one has ended."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ci_tasks.errors import CiTasksError
from ci_tasks.flows import journal as journals
from ci_tasks.flows.allotting import Allotment
from ci_tasks.flows.course import Course, Policy
from ci_tasks.flows.journal import Begun, Journal
from ci_tasks.flows.lanes import host_lanes, lanes
from ci_tasks.flows.prepare import Ready
from ci_tasks.flows.site import Look, Prepared
from ci_tasks.flows.stations import Station, Stations
from ci_tasks.flows.view import View
from ci_tasks.model import BLOCKED, CANCELLED, FAILED, VACUOUS, Row
from ci_tasks.runner.layout import RunDir, write_json
from ci_tasks.runs.record import not_begun, settle

_GLANCE = 0.05  # seconds between two looks at the rows, where nothing is heard of them
_SHOWN = 0.2  # seconds between two pictures of many rows
_MANY = 20
_ENOUGH = 0.2  # seconds of beginning or judging rows, after which those that run are looked at again

Expected = Callable[[Row], float]  # seconds that a row is expected to take


def run_rows(
    ready: Ready,
    jobs: int | None,
    view: View,
    policy: Policy,
    expected: Expected,
    hosts: Stations | None = None,
    resumed: Journal | None = None,
) -> list[Course]:
    """Run all rows to their ends, in order; `hosts` are the threads of several hosts. On ^C every running row is
    cancelled and the others never start; a second ^C kills what is left at once."""
    run = Execution(ready, jobs, view, policy, expected, hosts)
    if resumed:
        run.resume(resumed)
    asked = heard = 0  # how often ^C was pressed, and how much of that was acted on: it may come at any moment
    over = False
    while not over:
        try:
            while not run.is_over:  # inside, or ^C at this very point would be nobody's
                if asked > heard:
                    heard = asked
                    run.interrupt(asked)
                run.start_what_fits()
                ended = run.ended()
                run.tell()
                if ended:
                    run.settle(ended)
                else:
                    run.wait()
            over = True
        except KeyboardInterrupt:
            asked += 1
        except Exception:  # a closed pipe, a full disk: no row goes on without us
            run.end_running(kill=True)
            raise
    run.show()
    return run.courses


class Execution:
    """The rows of a command and its hosts, from moment to moment."""

    def __init__(
        self,
        ready: Ready,
        jobs: int | None,
        view: View,
        policy: Policy,
        expected: Expected,
        hosts: Stations | None = None,
    ) -> None:
        self.ready, self.view, self.policy, self.stations = ready, view, policy, ready.stations
        now = time.monotonic()
        self.courses = [Course(at, row, expected(row), asked=now) for at, row in enumerate(ready.rows)]
        self.left: float | None = None
        self._allotment = Allotment(ready, self.courses, jobs)
        self._hosts, self._numbers = hosts, itertools.count(len(ready.rows) + 1)
        self._shown = 0.0
        self._stopping = False

    @property
    def is_over(self) -> bool:
        return all(course.record is not None for course in self.courses)

    # -- starting ----------------------------------------------------------------------------------------------------

    def start_what_fits(self) -> None:
        waiting = [course for course in self.courses if course.waits]
        if not waiting or not self._allotment.has_changed():
            return
        for course in [course for course in waiting if self._allotment.is_hopeless(course)]:
            waiting.remove(course)
            self._never(course, BLOCKED, self._why_nowhere(course))
        allotted, enough = self._allotment.decide(waiting), time.monotonic() + _ENOUGH
        self.left = allotted.left
        for course, why in allotted.waits:
            if self.policy.explain and course.why != why:
                self.view.say(f"{course.row.row} waits: {why}")
            course.why = why
        for course, station, why in allotted.starts:
            if self.policy.explain:
                self.view.say(f"{course.row.row} goes to {station.name}: {why}")
            self._begin(course, station)
            self.tell()
            if time.monotonic() > enough:
                self._allotment.forget()  # the others are placed anew, after a look at what runs
                break

    def _why_nowhere(self, course: Course) -> str:
        if course.position in self.ready.drafted:
            return why_blocked(self.ready.drafted[course.position])
        lacking = (
            f"{station.name}: {'; '.join(station.lacks(course.row)) or 'an earlier attempt ended there'}"
            for station in self.stations
        )
        return f"no host can run it: {'; '.join(lacking)}"

    def _begin(self, course: Course, station: Station) -> None:
        drafted = self.ready.drafted.pop(course.position, None)
        number = course.position + 1 if course.attempt == 1 and not course.moving else next(self._numbers)
        try:
            prepared = drafted or self.ready.drafts.draft(course.row, station, number)
        except CiTasksError as problem:
            self._allotment.forget()
            run = self._placeless(course, station.name)
            self._conclude(course, not_begun(run, BLOCKED, problem.message), run)
            return
        self._note(Begun(course.row.row, int(os.path.basename(prepared.run.path)), station.name))
        course.moving = False
        course.prepared, course.station, course.since = prepared, station, time.monotonic()
        station.site.begin(prepared)

    def resume(self, journal: Journal) -> None:
        """Come back to the attempts of an earlier command: what has a record has ended, what was begun is watched."""
        from ci_tasks.flows.resuming import come_back

        self._numbers = itertools.count(journal.next_number)
        come_back(journal, self.courses, self.ready, self.view.say)

    # -- ending ------------------------------------------------------------------------------------------------------

    def ended(self) -> list[tuple[Course, Look]]:
        """The rows whose attempt is over, with how."""
        over = []
        for course in self.courses:
            if course.runs and course.prepared is not None and course.station is not None:
                look = course.station.site.look(course.prepared)
                if look.over or look.never:
                    over.append((course, look))
                elif not look.begun and not course.moving and self._belongs_elsewhere(course):
                    course.moving = True
                    course.station.site.end([course.prepared], kill=False)
        return over

    def _belongs_elsewhere(self, course: Course) -> bool:
        """Whether a row on its way to a host that has vanished could run on another one."""
        here = course.station
        others = [station for station in self.stations if station is not here and station.is_ready]
        return (
            here is not None
            and not here.site.is_up
            and any(other.site.is_up and course.may_run_on(other) for other in others)
        )

    def settle(self, ended: Sequence[tuple[Course, Look]]) -> None:
        """Judge what has ended, as far as there is time. All of it is shown by now: to judge a log takes a while."""
        self._allotment.forget()
        enough = time.monotonic() + _ENOUGH
        for course, look in ended:
            prepared = course.prepared
            assert prepared is not None
            if not self._stopping and course.is_void(look):
                self._take_back(course, prepared)
            else:
                record = not_begun(prepared.run, *look.never) if look.never else settle(prepared.run)
                if not look.never:
                    prepared.site.settled(prepared)
                self._conclude(course, record, prepared.run)
            if time.monotonic() > enough:
                break

    def _conclude(self, course: Course, record: dict[str, Any], run: RunDir) -> None:
        """An attempt has its record: another one follows, or it was the last."""
        if not self._stopping and course.try_again(record, self.stations, self.policy):
            last = course.earlier[-1]
            self.view.say(f"{last['status']:<9} {course.row.row} on {last['host']}: {last['reason']}; trying again")
            course.asked = time.monotonic()
            return
        course.end(record, run)
        if record["status"] in (FAILED, VACUOUS) and self.policy.fail_fast and not self._stopping:
            self._stop_for(course)

    def _take_back(self, course: Course, prepared: Prepared) -> None:
        """The attempt never was; the row waits for the next one."""
        shutil.rmtree(prepared.run.path, ignore_errors=True)
        course.prepared = course.station = None
        course.moving, course.resumed = True, False

    def _stop_for(self, failed: Course) -> None:
        self._stopping = True
        self.view.say(f"{failed.row.row} failed: ending the others (--fail-fast)")
        for course in self.courses:
            course.stopped = course.record is None
            if course.waits:
                self._never(course, CANCELLED, f"not started, since {failed.row.row} failed (--fail-fast)")
        self.end_running(kill=False)

    def interrupt(self, patience: int) -> None:
        """A person pressed ^C for the `patience`-th time."""
        self._stopping = True
        if self._hosts:
            self._hosts.give_up()
        for course in self.courses:
            course.stopped = False
            if course.waits:
                self._never(course, CANCELLED, "cancelled before it began")
        if patience == 1:
            self.view.say(f"cancelling what runs ({len(self._running())}); ^C again kills it")
        self.end_running(kill=patience > 1)

    def end_running(self, *, kill: bool) -> None:
        for station in self.stations:
            there = [prepared for prepared in self._running() if prepared.site is station.site]
            if there:
                station.site.end(there, kill=kill)

    def _never(self, course: Course, status: str, reason: str) -> None:
        """The record of a row that never began."""
        drafted = self.ready.drafted.pop(course.position, None)
        run = drafted.run if drafted else self._placeless(course)
        course.end(not_begun(run, status, reason), run)

    def _placeless(self, course: Course, host: str | None = None) -> RunDir:
        """The run directory of a row that has no plan: no host was given it, or `host` cannot say what it would run."""
        number = course.position + 1 if course.attempt == 1 else next(self._numbers)
        run, row = self.ready.batch.run_dir(number), course.row
        os.makedirs(run.path, exist_ok=True)
        known = {"id": self.ready.batch.run_id(number), "host": host, "checkout": asdict(self.ready.checkout)}
        named = {"label": row.label, "job": row.job, "row": row.row, "test": row.test, "gpus": row.gpus or 0}
        write_json(run.plan, {**known, **named})
        self._note(Begun(row.row, number, host or ""))
        return run

    def _note(self, begun: Begun) -> None:
        """A full disk here ends no row."""
        try:
            journals.note(self.ready.batch, begun)
        except OSError as error:
            self.view.say(f"{self.ready.batch.path}: {error.strerror}; --resume will not find {begun.row}")

    def _running(self) -> list[Prepared]:
        return [course.prepared for course in self.courses if course.runs and course.prepared is not None]

    # -- telling -----------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        for station in self.stations:
            for line in station.site.told():
                self.view.say(line)
        for line in self._hosts.said() if self._hosts else ():
            self.view.say(line)
        if len(self.courses) < _MANY or time.monotonic() > self._shown + _SHOWN:
            self.show()

    def show(self) -> None:
        self._shown = time.monotonic()
        hosts = host_lanes(self.stations, self.courses) if len(self.stations) > 1 else ()
        self.view.show(lanes(self.courses), hosts, self.left)

    def wait(self) -> None:
        if len(self.stations) == 1:
            self.stations[0].site.wait(_GLANCE)
        else:
            time.sleep(_GLANCE)


def why_blocked(row: Prepared) -> str:
    """What the host lacks, and which other host of hosts.yaml could run the row."""
    could = f"could run on: {', '.join(row.could)}" if row.could else "no other host of hosts.yaml could run it"
    return f"{row.plan.host} lacks {'; '.join(row.lacks)}; {could}"
