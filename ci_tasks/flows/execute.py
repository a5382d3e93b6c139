"""Running prepared rows on their site: as many at once as fit, each by the runner, until every one has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.flows.prepare import Ready
from ci_tasks.flows.site import Look, Prepared, Site
from ci_tasks.flows.view import View, running_lane
from ci_tasks.model import BLOCKED, CANCELLED
from ci_tasks.plan.placement import Need, startable
from ci_tasks.report.live import WAITING, Lane
from ci_tasks.runs.record import not_begun, settle

_GLANCE = 0.05  # seconds between two looks at the rows, where nothing is heard of them


@dataclass
class _Rows:
    """The rows by what has become of them, each by its position."""

    site: Site
    prepared: list[Prepared]
    waiting: list[int]
    running: dict[int, float] = field(default_factory=dict)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)


def run_rows(ready: Ready, at_once: int, view: View) -> list[dict[str, Any]]:
    """The records of all rows, in order. On ^C every running row is cancelled and the others never start; a second ^C
    kills what is left at once."""
    rows = _Rows(ready.site, ready.rows, [position for position, row in enumerate(ready.rows) if not row.lacks])
    for position, row in enumerate(ready.rows):
        if row.lacks:
            rows.records[position] = not_begun(row.run, BLOCKED, why_blocked(row))
    asked = heard = 0  # how often ^C was pressed, and how much of that was acted on: it may come at any moment
    while rows.waiting or rows.running:
        try:
            if asked > heard:
                heard = asked
                _interrupt(rows, view, asked)
            _start(rows, ready, at_once)
            ended = _ended(rows)
            for line in ready.site.told():
                view.say(line)
            # Now everything of what has ended is shown: to judge a long log takes a while.
            view.show(_lanes(rows))
            if ended:
                _settle(rows, ended)
            else:
                ready.site.wait(_GLANCE)
        except KeyboardInterrupt:
            asked += 1
        except Exception:  # a closed pipe, a full disk: no row goes on without us
            ready.site.end(_running(rows), kill=True)
            raise
    view.show(_lanes(rows))
    return [rows.records[position] for position in range(len(ready.rows))]


def let_go(ready: Ready, view: View) -> list[dict[str, Any]]:
    """Start every row and let it go on by itself: the locks on the host say which waits for which. Returns the records
    of all rows where one of them could not begin, or ^C came before all had; then those that could are ended again."""
    rows = _Rows(ready.site, ready.rows, [])
    lacking = {position: why_blocked(row) for position, row in enumerate(ready.rows) if row.lacks}
    status, others = BLOCKED, "another row of the command could not begin"
    try:
        if not lacking:
            lacking = _all_begun(rows, view)
    except KeyboardInterrupt:
        status, others = CANCELLED, "cancelled before all rows had begun"
    else:
        if not lacking:
            ready.site.leave()
            return []
    _wind_up(rows, view)
    return [not_begun(row.run, status, lacking.get(position, others)) for position, row in enumerate(ready.rows)]


def _all_begun(rows: _Rows, view: View) -> dict[int, str]:
    """Begin every row. Returns why, of those that could not."""
    for position, row in enumerate(rows.prepared):
        rows.running[position] = time.monotonic()
        rows.site.begin(row)
    while True:
        looks = [rows.site.look(row) for row in rows.prepared]
        if all(look.begun or look.never for look in looks):
            return {position: look.never[1] for position, look in enumerate(looks) if look.never}
        view.show(_lanes(rows))
        rows.site.wait(_GLANCE)


def _wind_up(rows: _Rows, view: View) -> None:
    """End what was begun, and wait until it has; a further ^C kills it, and one more leaves it."""
    view.say(f"ending what was begun ({len(rows.running)})")
    for kill in (False, True, True):
        rows.site.end(_running(rows), kill=kill)
        try:
            while len(_ended(rows)) < len(rows.running):
                rows.site.wait(_GLANCE)
            return
        except KeyboardInterrupt:
            continue


def why_blocked(row: Prepared) -> str:
    """What the host lacks, and which other host of hosts.yaml could run the row."""
    could = f"could run on: {', '.join(row.could)}" if row.could else "no other host of hosts.yaml could run it"
    return f"{row.plan.host} lacks {'; '.join(row.lacks)}; {could}"


def none_begun(rows: Iterable[Prepared], status: str, reason: str) -> list[dict[str, Any]]:
    """The records of rows that never began, all for one reason."""
    return [not_begun(row.run, status, reason) for row in rows]


def _start(rows: _Rows, ready: Ready, at_once: int) -> None:
    wanted = [_need(rows, position) for position in rows.waiting]
    held = [_need(rows, position) for position in rows.running]
    for place in reversed(startable(wanted, held, ready.gpus, at_once)):
        position = rows.waiting.pop(place)
        rows.running[position] = time.monotonic()
        rows.site.begin(rows.prepared[position])


def _need(rows: _Rows, position: int) -> Need:
    plan = rows.prepared[position].plan
    return Need(plan.gpus, plan.exclusive)


def _ended(rows: _Rows) -> dict[int, Look]:
    looks = {position: rows.site.look(rows.prepared[position]) for position in rows.running}
    return {position: look for position, look in looks.items() if look.over or look.never}


def _settle(rows: _Rows, ended: dict[int, Look]) -> None:
    for position, look in ended.items():
        row = rows.prepared[position]
        if look.never:
            rows.records[position] = not_begun(row.run, *look.never)
        else:
            rows.records[position] = settle(row.run)
            rows.site.settled(row)
        del rows.running[position]


def _running(rows: _Rows) -> list[Prepared]:
    return [rows.prepared[position] for position in rows.running]


def _interrupt(rows: _Rows, view: View, patience: int) -> None:
    for position in rows.waiting:
        rows.records[position] = not_begun(rows.prepared[position].run, CANCELLED, "cancelled before it began")
    rows.waiting = []
    if patience == 1:
        view.say(f"cancelling what runs ({len(rows.running)}); ^C again kills it")
    rows.site.end(_running(rows), kill=patience > 1)


def _lanes(rows: _Rows) -> list[Lane]:
    return [_lane(rows, position) for position in range(len(rows.prepared))]


def _lane(rows: _Rows, position: int) -> Lane:
    prepared = rows.prepared[position]
    name = prepared.plan.row
    if position in rows.records:
        record = rows.records[position]
        return Lane(name, record["status"], record["timings"]["seconds"], record["reason"] or "")
    if position in rows.running:
        seconds = time.monotonic() - rows.running[position]
        return running_lane(name, prepared.run, seconds, rows.site.look(prepared).note)
    return Lane(name, WAITING)
