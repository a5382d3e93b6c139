"""Rows and hosts as a plan wants them: jobs, lines of what is free when, and what no plan can beat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ci_tasks.plan.schedule.layout import Job
from ci_tasks.plan.schedule.timeline import Line, book, empty, fits_now
from ci_tasks.plan.schedule.times import length, prior, remaining
from ci_tasks.plan.schedule.values import Machine, Task

# What speaks against a host, in seconds that a row rather waits for another one. An image of tens of gigabytes takes
# minutes to pull, but once for all rows of the host, and mostly ahead; the code a few seconds, once.
IMAGE_COST, CODE_COST = 60.0, 5.0
# How long others are thought to keep GPUs: as long as two wide rows of ours, since somebody may wait there already.
HELD_SECONDS = 2 * prior(8)
# A row that has waited so much longer than another, as long as a wide one takes, is not delayed by it.
PATIENCE = prior(8)


class Table:
    """`jobs` are the rows that some host can take, `never` the positions of the others, `lines` and `ends` what of each
    host is free when, and when what runs there is expected to end."""

    def __init__(self, waiting: Sequence[Task], machines: Sequence[Machine]) -> None:
        self.waiting, self.machines = waiting, machines
        self._bits: dict[str, int] = {}
        self._hosts: dict[object, tuple[tuple[int, float], ...]] = {}
        self._youngest = min((task.waited for task in waiting), default=0.0)
        self.lines = [self._line(machine) for machine in machines]
        self.ends = [max(map(remaining, machine.running), default=0.0) for machine in machines]
        jobs = [self._job(position, task) for position, task in enumerate(waiting)]
        self.jobs = [job for job in jobs if job.hosts]
        self.never = [job.position for job in jobs if not job.hosts]

    @cached_property
    def room(self) -> bool:
        """Whether any row could start now, were it the only one."""
        kinds = {(job.gpus, job.names, job.hosts) for job in self.jobs}
        return any(fits_now(self.lines[host], gpus, names) for gpus, names, hosts in kinds for host, _ in hosts)

    @cached_property
    def bound(self) -> float:
        """Seconds that no plan can beat: the longest row, all work over all GPUs, rows of which a host holds one."""
        if not self.jobs:
            return max(self.ends, default=0.0)
        hosts = [self.machines[host] for host in sorted({host for job in self.jobs for host, _ in job.hosts})]
        work = [(job.gpus, job.names, job.seconds) for job in self.jobs]
        for machine in hosts:
            work += [(row.task.gpus, self._names(row.task), remaining(row)) for row in machine.running]
        gpus, slots = sum(machine.gpus for machine in hosts), sum(machine.slots for machine in hosts)
        widest = max(machine.gpus for machine in hosts)
        alone = [sum(seconds for wanted, _, seconds in work if wanted * 2 > widest)]
        alone += [sum(seconds for _, names, seconds in work if names & bit) for bit in self._bits.values()]
        return max(
            max(self.ends),
            max(job.seconds for job in self.jobs),
            sum(wanted * seconds for wanted, _, seconds in work) / max(gpus, 1),
            sum(seconds for _, _, seconds in work) / slots,
            max(alone) / len(hosts),
        )

    def _line(self, machine: Machine) -> Line:
        line = empty(machine.gpus, machine.slots)
        for row in machine.running:
            line = book(line, 0.0, remaining(row), row.task.gpus, self._names(row.task))
        return book(line, 0.0, HELD_SECONDS, machine.held, slots=0) if machine.held > 0 else line

    def _names(self, task: Task) -> int:
        bits = 0
        for name in task.exclusive:
            bits |= self._bits.setdefault(name, 1 << len(self._bits))
        return bits

    def _job(self, position: int, task: Task) -> Job:
        key = (task.gpus, task.hosts, task.image)
        if key not in self._hosts:
            able = [(host, machine) for host, machine in enumerate(self.machines) if _able(task, machine)]
            self._hosts[key] = tuple((host, _cost(task, machine)) for host, machine in able)
        age = int((task.waited - self._youngest) / PATIENCE)
        return Job(position, task.gpus, self._names(task), length(task), self._hosts[key], age)


def _able(task: Task, machine: Machine) -> bool:
    allowed = task.hosts is None or machine.name in task.hosts
    return allowed and machine.up and machine.slots > 0 and machine.gpus >= task.gpus


def _cost(task: Task, machine: Machine) -> float:
    image = task.image is not None and task.image not in machine.images
    return IMAGE_COST * image + CODE_COST * (not machine.has_code)
