"""How the rows and hosts of a command stand, for a view."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ci_tasks.flows.course import Course
from ci_tasks.flows.stations import Station
from ci_tasks.flows.view import running_lane
from ci_tasks.report.live import WAITING, HostLane, Lane


def lanes(courses: Sequence[Course]) -> list[Lane]:
    """A lane for each row, in their order."""
    return [_lane(course) for course in courses]


def host_lanes(stations: Sequence[Station], courses: Sequence[Course]) -> list[HostLane]:
    """A lane for each host."""
    ours = dict.fromkeys((station.name for station in stations), 0)
    for course in courses:
        if course.runs and course.station is not None:
            ours[course.station.name] += course.row.gpus or 0
    return [_host_lane(station, ours[station.name]) for station in stations]


def _lane(course: Course) -> Lane:
    name, gpus = course.row.row, course.row.gpus or 0
    if course.record is not None:
        record = course.record
        return Lane(
            name,
            record["status"],
            record["timings"]["seconds"],
            record["reason"] or "",
            host=record["host"] or "",
            gpus=gpus,
            attempt=course.attempt,
        )
    if course.prepared is None or course.station is None:
        return Lane(name, WAITING, None, course.why, gpus=gpus, attempt=course.attempt)
    seconds = time.monotonic() - course.since
    note = course.station.site.look(course.prepared).note
    return running_lane(
        name,
        course.prepared.run,
        seconds,
        note,
        host=course.station.name,
        gpus=gpus,
        left=course.seconds - seconds,
        attempt=course.attempt,
    )


def _host_lane(station: Station, ours: int) -> HostLane:
    facts = station.facts
    is_away = bool(station.problem) or (station.is_ready and not station.site.is_up)
    note = station.problem or station.note or ("the link is down" if is_away else "")
    return HostLane(
        station.name,
        None if facts is None or station.site.queues else facts.gpus,
        held=max(0, len(station.locked) - ours),
        up=not is_away,
        note=note,
    )
