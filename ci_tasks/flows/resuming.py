"""Coming back to a command that was left: its rows that ended keep their records, its rows that run are watched, and
the others wait for a host again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields

from ci_tasks.errors import UsageError
from ci_tasks.flows.course import Course
from ci_tasks.flows.journal import Begun, Journal
from ci_tasks.flows.prepare import Ready
from ci_tasks.flows.site import Prepared
from ci_tasks.flows.stations import Station
from ci_tasks.model import Checkout, Plan
from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.runs.record import is_over, load


def same_tree(journal: Journal, tree: str) -> None:
    """All rows of a command run one tree. Raises UsageError where the checkout is another by now."""
    if journal.tree != tree:
        raise UsageError(
            f"the checkout is not what {journal.batch.id} runs: tree {journal.tree[:12]} then, {tree[:12]} now",
            hint="put it back as it was (git stash), or run the label anew; `--last-failed` takes what did not pass",
        )


def come_back(journal: Journal, courses: Sequence[Course], ready: Ready, say: Callable[[str], None]) -> None:
    """Put each row where it stands."""
    stations = {station.name: station for station in ready.stations}
    ended = watched = 0
    for course in courses:
        # What never left this machine was begun anew under the same number.
        attempts = list({one.number: one for one in journal.begun if one.row == course.row.row}.values())
        for earlier in attempts[:-1]:
            _ended_earlier(course, ready.batch.run_dir(earlier.number))
        if not attempts:
            continue
        last, run = attempts[-1], ready.batch.run_dir(attempts[-1].number)
        if read_json(run.record) or (_began(run) and is_over(run)):
            course.end(load(run), run)
            ended += 1
        elif _began(run):
            _watch(course, run, last, stations)
            watched += 1
    waiting = len(courses) - ended - watched
    say(f"resuming {journal.batch.id}: {ended} ended, {watched} to be brought home, {waiting} to be started")


def _began(run: RunDir) -> bool:
    """Whether a host may have heard of the run; one that never left this machine is begun anew."""
    return bool(read_json(run.status) or read_json(run.remote))


def _ended_earlier(course: Course, run: RunDir) -> None:
    record = read_json(run.record)
    if record:
        course.earlier.append({key: record.get(key) for key in ("id", "host", "status", "reason")})


def _watch(course: Course, run: RunDir, begun: Begun, stations: dict[str, Station]) -> None:
    station = stations.get(begun.host)
    if station is None:
        raise UsageError(
            f"{course.row.row} runs on {begun.host}, which --host does not name", hint=f"add {begun.host} to --host"
        )
    course.prepared, course.station, course.resumed = _prepared(course, run, station), station, True
    course.since = time.monotonic() - max(0.0, time.time() - read_json(run.status).get("started_at", time.time()))
    station.site.rejoin(course.prepared)


def _prepared(course: Course, run: RunDir, station: Station) -> Prepared:
    """The attempt as it was planned."""
    known = read_json(run.plan)
    names = {field.name for field in fields(Plan)}
    given = {name: value for name, value in known.items() if name in names}
    checkout = Checkout(**{**known["checkout"], "dirty": tuple(known["checkout"]["dirty"])})
    plan = Plan(**{**given, "script": "", "deviations": (), "checkout": checkout})
    return Prepared(row=course.row, plan=plan, run=run, setup=None, site=station.site)
