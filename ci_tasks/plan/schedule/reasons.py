"""Why each row of a plan starts now, or waits."""

from __future__ import annotations

from functools import cached_property
from math import inf

from ci_tasks.plan.schedule import wording
from ci_tasks.plan.schedule.layout import Layout
from ci_tasks.plan.schedule.table import Table
from ci_tasks.plan.schedule.values import Machine, Task


class Reasons:
    """What is to be said of the rows of `layout`, by their place in its order."""

    def __init__(self, table: Table, layout: Layout) -> None:
        self._table, self._layout = table, layout

    def begins(self, place: int) -> str:
        """Of a row that starts now: what makes room for it, what spoke for the host, and whom it passes."""
        job, machine = self._layout.order[place], self._machine(place)
        costs = dict(job.hosts)
        free = machine.gpus - machine.held - sum(row.task.gpus for row in machine.running)
        cost = costs[self._layout.hosts[place]]
        why = wording.begins(self._task(place), machine, free, dearer=max(costs.values()) > cost)
        passed = self._comes_later(place) if job.gpus else None
        if passed is None:
            return why
        return f"{why}; {wording.passes(self._task(passed), self._layout.starts[passed])}"

    def waits(self, place: int) -> str:
        """Of a row that does not start now: what it waits for on the host where the plan has it."""
        start = self._layout.starts[place]
        if start == inf:
            return wording.later(place)
        task, machine = self._task(place), self._machine(place)
        there = self._there[self._layout.hosts[place]]
        for other in there:
            both = [name for name in task.exclusive if name in other.exclusive]
            if both:
                return wording.excluded(other, machine, both, start)
        free = max(machine.gpus - machine.held - sum(other.gpus for other in there), 0)
        if free < task.gpus:
            return wording.short(task, machine, free, start)
        if len(there) >= machine.slots:
            return wording.full(machine, start)
        passed = self._comes_later(place)
        return wording.later(place) if passed is None else wording.behind(self._task(passed), machine, start)

    def yields(self, passed: int) -> str:
        """Of a row that could start now, were there not the row `passed`, which has waited for too long."""
        return wording.yields(self._task(passed), self._machine(passed))

    @cached_property
    def _there(self) -> list[list[Task]]:
        """Of each host, the rows that run there or start now."""
        there = [[row.task for row in machine.running] for machine in self._table.machines]
        for place, start in enumerate(self._layout.starts):
            if start == 0:
                there[self._layout.hosts[place]].append(self._task(place))
        return there

    def _comes_later(self, place: int) -> int | None:
        """The first row before `place` in the plan's order that gets GPUs of its host later."""
        host = self._layout.hosts[place]
        for before in range(place):
            if self._layout.hosts[before] == host and 0 < self._layout.starts[before] < inf:
                return before
        return None

    def _task(self, place: int) -> Task:
        return self._table.waiting[self._layout.order[place].position]

    def _machine(self, place: int) -> Machine:
        return self._table.machines[self._layout.hosts[place]]
