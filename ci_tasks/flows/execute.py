"""Running prepared rows on this machine: as many at once as fit, each by the runner, until every one has ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.errors import CiTasksError
from ci_tasks.flows.prepare import Prepared, Ready, check_out
from ci_tasks.flows.view import View, last_line
from ci_tasks.hosts import local
from ci_tasks.model import BLOCKED, CANCELLED
from ci_tasks.plan.placement import startable
from ci_tasks.report.live import RUNNING, STALLED, WAITING, Lane
from ci_tasks.runs.record import not_begun, settle

_GLANCE = 0.05  # seconds between two looks at the rows' directories


@dataclass
class _Rows:
    """The rows by what has become of them, each by its position."""

    prepared: list[Prepared]
    waiting: list[int]
    running: dict[int, float] = field(default_factory=dict)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)


def run_rows(ready: Ready, at_once: int, view: View) -> list[dict[str, Any]]:
    """The records of all rows, in order. On ^C every running row is cancelled and the others never start; a second ^C
    kills what is left at once."""
    rows = _Rows(ready.rows, [position for position, row in enumerate(ready.rows) if not row.lacks])
    for position, row in enumerate(ready.rows):
        if row.lacks:
            rows.records[position] = not_begun(row.run, BLOCKED, why_blocked(row))
    patience = 0
    while rows.waiting or rows.running:
        try:
            _start(rows, ready, at_once)
            _settle(rows)
            view.show(_lanes(rows))
            time.sleep(_GLANCE)
        except KeyboardInterrupt:
            patience += 1
            _interrupt(rows, view, patience)
        except Exception:  # a closed pipe, a full disk: no row goes on without us
            for position in rows.running:
                local.kill(rows.prepared[position].run)
            raise
    view.show(_lanes(rows))
    return [rows.records[position] for position in range(len(ready.rows))]


def why_blocked(row: Prepared) -> str:
    """What the host lacks, and which other host of hosts.yaml could run the row."""
    could = f"could run on: {', '.join(row.could)}" if row.could else "no other host of hosts.yaml could run it"
    return f"{row.plan.host} lacks {'; '.join(row.lacks)}; {could}"


def none_begun(rows: Iterable[Prepared], status: str, reason: str) -> list[dict[str, Any]]:
    """The records of rows that never began, all for one reason."""
    return [not_begun(row.run, status, reason) for row in rows]


def _start(rows: _Rows, ready: Ready, at_once: int) -> None:
    wanted = [rows.prepared[position].plan.gpus for position in rows.waiting]
    held = [rows.prepared[position].plan.gpus for position in rows.running]
    for place in reversed(startable(wanted, held, ready.gpus, at_once)):
        position = rows.waiting.pop(place)
        row = rows.prepared[position]
        rows.running[position] = time.monotonic()
        try:
            if row.setup is None:
                check_out(row.plan.workspace, ready.batch)
            local.start(row.run)
        except (CiTasksError, OSError) as problem:  # the tree is proven: what fails now is the machine
            del rows.running[position]
            rows.records[position] = not_begun(row.run, BLOCKED, str(problem))


def _settle(rows: _Rows) -> None:
    for position in [position for position in rows.running if local.ended(rows.prepared[position].run)]:
        row = rows.prepared[position]
        local.clear(row.run)
        rows.records[position] = settle(row.run, row.test_source)
        del rows.running[position]
        if row.setup is None:
            shutil.rmtree(row.plan.workspace, ignore_errors=True)


def _interrupt(rows: _Rows, view: View, patience: int) -> None:
    checked_out = [position for position in rows.running if not local.status(rows.prepared[position].run)]
    for position in (*rows.waiting, *checked_out):
        rows.records[position] = not_begun(rows.prepared[position].run, CANCELLED, "cancelled before it began")
        rows.running.pop(position, None)
    rows.waiting = []
    if patience == 1:
        view.say(f"cancelling what runs ({len(rows.running)}); ^C again kills it")
        for position in rows.running:
            local.request_cancel(rows.prepared[position].run)
    else:
        for position in rows.running:
            local.kill(rows.prepared[position].run)


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
        if local.status(prepared.run).get("stalled"):
            return Lane(name, STALLED, seconds, f"no output for {prepared.plan.stall_minutes:g} min")
        return Lane(name, RUNNING, seconds, last_line(prepared.run))
    return Lane(name, WAITING)
