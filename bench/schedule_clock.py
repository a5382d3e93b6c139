"""A simulated clock: rows on hosts by our `place`, first come first served, and by CI's own way. Used by schedule.py.

Ours is asked at the start and whenever a row ends, with the time each row was expected to take. A start costs nothing.
First come first served (`fifo`) starts the first row that waits, as soon as it fits, and no row before it.
CI's: jobs come in random order to whichever of the hosts' runners is idle, and each asks for its GPUs with
gpu_lock_exec.py: all or nothing, again after a random sleep of up to 5 s. It knows no names that exclude each other.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from sys import path

path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.planning.load import HostLoad, StartedRow, WaitingRow
from ci_tasks.planning.placement import place

SLEEP = 5.0
Decide = Callable[[Sequence[WaitingRow], Sequence[HostLoad]], Sequence[tuple[int, str]]]


def ours(waiting: Sequence[WaitingRow], loads: Sequence[HostLoad]) -> Sequence[tuple[int, str]]:
    return [(start.position, start.host) for start in place(waiting, loads).starts]


def fifo(waiting: Sequence[WaitingRow], loads: Sequence[HostLoad]) -> Sequence[tuple[int, str]]:
    starts = []
    free = {load.name: load.gpus - sum(one.row.gpus for one in load.started) for load in loads}
    names = {load.name: {name for one in load.started for name in one.row.exclusive} for load in loads}
    for position, row in enumerate(waiting):
        host = next((host for host in free if free[host] >= row.gpus and not names[host] & row.exclusive), None)
        if host is None:
            break
        free[host] -= row.gpus
        names[host] |= row.exclusive
        starts.append((position, host))
    return starts


def makespan(decide: Decide, rows: Sequence[WaitingRow], seconds: Sequence[float], loads: Sequence[HostLoad]) -> float:
    """When the last of `rows` ends, which really take `seconds` on a host of speed 1."""
    waiting, now = list(range(len(rows))), 0.0
    running: dict[int, tuple[str, float, float]] = {}  # row → host, begin, end
    while waiting or running:
        busy = [
            HostLoad(load.name, load.gpus, load.slots, speed=load.speed, started=_on(load.name, now, running, rows))
            for load in loads
        ]
        speeds = {load.name: load.speed for load in loads}
        for position, host in decide([rows[row] for row in waiting], busy):
            row = waiting[position]
            running[row] = host, now, now + seconds[row] / speeds[host]
        waiting = [row for row in waiting if row not in running]
        now = min(end for _, _, end in running.values())
        running = {row: there for row, there in running.items() if there[2] > now}
    return now


def _on(
    host: str, now: float, running: dict[int, tuple[str, float, float]], rows: Sequence[WaitingRow]
) -> tuple[StartedRow, ...]:
    return tuple(StartedRow(rows[row], now - begin) for row, (where, begin, _) in running.items() if where == host)


def ci(gpus_of: Sequence[int], seconds: Sequence[float], hosts: int, gpus: int, runners: int, seed: int) -> float:
    """CI's own way, with so many `runners` on each host: when the last row ends."""
    chance = random.Random(seed)
    queue = list(range(len(gpus_of)))
    chance.shuffle(queue)
    idle = [host for host in range(hosts) for _ in range(runners)]
    free, now = [gpus] * hosts, 0.0
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
            heapq.heappush(events, (now + seconds[row], row, host, 1))
        else:
            heapq.heappush(events, (now + SLEEP * chance.random(), row, host, 0))
    return now
