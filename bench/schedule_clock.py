"""A simulated clock: rows on hosts by our `place`, and by CI's own way. Used by schedule.py.

Ours is asked at the start and whenever a row ends, with the time each row was expected to take; how long it really
takes nobody knows before its end. A start costs nothing, neither here nor there.
CI's: jobs come in random order to whichever of the hosts' runners is idle, and each asks for its GPUs with
gpu_lock_exec.py: all or nothing, again after a random sleep of up to 5 s. It knows no names that exclude each other.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import path

path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.plan.schedule import Machine, Running, Task, place

SLEEP = 5.0


@dataclass(frozen=True)
class Span:
    """When and where a row ran."""

    row: int
    host: int
    begin: float
    end: float


def ours(tasks: Sequence[Task], seconds: Sequence[float], hosts: int, gpus: int, slots: int) -> list[Span]:
    """What becomes of `tasks`, which really take `seconds`."""
    waiting, running, spans = list(range(len(tasks))), dict[int, Span](), []
    now = 0.0
    while waiting or running:
        machines = [Machine(str(host), gpus, slots, running=_on(host, now, running, tasks)) for host in range(hosts)]
        starts = place([tasks[row] for row in waiting], machines).starts
        for start in starts:
            row = waiting[start.task]
            running[row] = Span(row, int(start.host), now, now + seconds[row])
        waiting = [row for row in waiting if row not in running]
        now = min(span.end for span in running.values())
        spans += [span for span in running.values() if span.end <= now]
        running = {row: span for row, span in running.items() if span.end > now}
    return spans


def _on(host: int, now: float, running: dict[int, Span], tasks: Sequence[Task]) -> tuple[Running, ...]:
    return tuple(Running(tasks[row], now - span.begin) for row, span in running.items() if span.host == host)


def ci(gpus_of: Sequence[int], seconds: Sequence[float], hosts: int, gpus: int, runners: int, seed: int) -> list[Span]:
    """CI's own way, with so many `runners` on each host."""
    chance = random.Random(seed)
    queue = list(range(len(gpus_of)))
    chance.shuffle(queue)
    idle = [host for host in range(hosts) for _ in range(runners)]
    free, spans = [gpus] * hosts, []
    events: list[tuple[float, int, int, int]] = []  # when, row, host, and 1 for an end, 0 for asking for the GPUs

    def give(now: float) -> None:
        while queue and idle:
            host = idle.pop(chance.randrange(len(idle)))
            heapq.heappush(events, (now + chance.random(), queue.pop(), host, 0))

    give(0.0)
    while events:
        now, row, host, ended = heapq.heappop(events)
        if ended:
            free[host] += gpus_of[row]
            idle.append(host)
            give(now)
        elif gpus_of[row] <= free[host]:
            free[host] -= gpus_of[row]
            spans.append(Span(row, host, now, now + seconds[row]))
            heapq.heappush(events, (now + seconds[row], row, host, 1))
        else:
            heapq.heappush(events, (now + SLEEP * chance.random(), row, host, 0))
    return spans


def makespan(spans: Sequence[Span]) -> float:
    """When the last row ends."""
    return max(span.end for span in spans)


def together(spans: Sequence[Span], ray: Sequence[bool]) -> int:
    """Rows with Ray that ran beside another one on their host: under --network host, the ports of both collide."""
    rows = [span for span in spans if ray[span.row]]
    return sum(any(_beside(one, other) for other in rows) for one in rows)


def _beside(one: Span, other: Span) -> bool:
    return one.host == other.host and one.row != other.row and one.begin < other.end and other.begin < one.end
