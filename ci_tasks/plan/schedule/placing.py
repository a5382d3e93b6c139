"""Which rows start now, and where: the part of the best plan for all rows that begins at this moment."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ci_tasks.plan.schedule import wording
from ci_tasks.plan.schedule.layout import Layout
from ci_tasks.plan.schedule.reasons import Reasons
from ci_tasks.plan.schedule.search import best
from ci_tasks.plan.schedule.table import Table
from ci_tasks.plan.schedule.values import Decision, Machine, Start, Task

# A row that has waited for so many times PATIENCE more than another is not passed by it on its host at all: not even
# where that would be over in time, for estimates may be wrong again and again.
_NOT_PASSED = 2


def place(waiting: Sequence[Task], machines: Sequence[Machine]) -> Decision:
    """Which of the `waiting` rows start now on which of the `machines`, whose names differ.

    A plan for all rows is made anew at each call, and what it starts now is started. It is the one that ends soonest of
    those that were tried, from the widest and longest rows first on: so a wide row comes late only where all end sooner
    by that, and a row that came much later (`Task.waited`) never delays it. Rows that no machine can ever hold,
    or none that is up, are not in the plan, and `waits` says so.

    Ask again whenever a row has ended or begins to wait, a host goes or comes, or others take or leave GPUs, and now
    and then while a row runs longer than expected. The answer depends on the arguments only.
    """
    table = Table(waiting, machines)
    layout = best(table.jobs, table.lines, table.ends, table.bound, table.room)
    reasons = Reasons(table, layout)
    soon = [place for place, start in enumerate(layout.starts) if start == 0]
    now = [place for place in soon if _passed(layout, place) is None]
    # Nothing of ours will let go of anything, so a row that yields would wait for the sake of what others hold.
    yields = bool(now) or any(machine.running for machine in machines)
    now = now if yields else soon
    starts = [_start(table, layout, place, reasons.begins(place)) for place in now]
    starts += _queued(table, layout, now)
    begun = {start.task for start in starts}
    waits = {position: wording.never(waiting[position], machines) for position in table.never}
    for position, job in enumerate(layout.order):
        if job.position not in begun:
            passed = _passed(layout, position) if yields else None
            waits[job.position] = reasons.waits(position) if passed is None else reasons.yields(passed)
    # Where the plan does not reach all rows, they take no less than their work does on all hosts together.
    return Decision(tuple(starts), waits, max(layout.end, table.bound))


def _start(table: Table, layout: Layout, place: int, why: str) -> Start:
    return Start(layout.order[place].position, table.machines[layout.hosts[place]].name, why)


def _passed(layout: Layout, place: int) -> int | None:
    """The row that has waited for so long that this one, which could start now, may not pass it."""
    job, host = layout.order[place], layout.hosts[place]
    oldest = layout.order[0].age
    if oldest - job.age < _NOT_PASSED or layout.starts[place] != 0 or not job.gpus:
        return None
    for before, other in enumerate(layout.order):
        if other.age - job.age < _NOT_PASSED:
            return None
        if layout.hosts[before] == host and 0 < layout.starts[before] < inf and other.gpus:
            return before
    return None


def _queued(table: Table, layout: Layout, now: Sequence[int]) -> list[Start]:
    """One row for each host where nothing of ours has GPUs and others hold those that the row needs: they may let go at
    any moment, which is seen soonest on the host."""
    busy = {layout.hosts[place] for place in now if layout.order[place].gpus}
    queued = []
    for host, machine in enumerate(table.machines):
        ours = host in busy or any(row.task.gpus for row in machine.running)
        place = None if ours or machine.held <= 0 else _next(layout, host)
        if place is not None:
            why = wording.queues(table.waiting[layout.order[place].position], machine)
            queued.append(_start(table, layout, place, why))
    return queued


def _next(layout: Layout, host: int) -> int | None:
    """The first row that is to have the host's GPUs, if it is only those of others that it waits for."""
    coming = [
        (start, place)
        for place, start in enumerate(layout.starts)
        if layout.hosts[place] == host and 0 < start < inf and layout.order[place].gpus
    ]
    if not coming:
        return None
    place = min(coming)[1]
    _, _, slots, taken = layout.lines[-1][host]
    return place if slots[0] > 0 and not taken[0] & layout.order[place].names else None
