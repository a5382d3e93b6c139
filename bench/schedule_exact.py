"""The shortest schedule there is, proved by branch and bound: for a few rows on one or two hosts. Used by schedule.py.

Every schedule can be pushed to the left until each row starts at 0 or when another one ends. So the search goes from
end to end, and at each starts any set of the rows that fit, or none. Two rows with one exclusive name never share a
host; `slots` is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

EPSILON = 1e-6


@dataclass(frozen=True)
class Row:
    gpus: int
    seconds: float
    exclusive: tuple[str, ...] = ()


class TooMany(Exception):
    """Nothing is proved within the nodes allowed."""


def optimum(rows: Sequence[Row], hosts: int, gpus: int, upper: float, nodes: int = 400_000) -> float:
    """The shortest makespan of `rows`, which is known to be at most `upper`. Raises TooMany."""
    search = _Search(sorted(rows, key=lambda row: (-row.gpus, -row.seconds)), hosts, gpus, upper, nodes)
    search.go(0.0, (1 << len(rows)) - 1, tuple(() for _ in range(hosts)), 0)
    return search.best


Hosts = tuple[tuple[tuple[float, int], ...], ...]  # of each host the rows that run: end and number, sorted


@dataclass
class _Search:
    rows: Sequence[Row]
    hosts: int
    gpus: int
    best: float
    nodes: int
    seen: dict[object, float] = field(default_factory=dict)

    def go(self, now: float, waiting: int, running: Hosts, least: int) -> None:
        """Start rows from the number `least` on, or none more before the next end."""
        self.nodes -= 1
        if self.nodes < 0:
            raise TooMany
        if self._bound(now, waiting, running) >= self.best - EPSILON:
            return
        if not waiting:
            self.best = max((end for host in running for end, _ in host), default=now)
            return
        for number, host in self._fits(waiting, running, least):
            entry = (now + self.rows[number].seconds, number)
            then = (*running[:host], tuple(sorted((*running[host], entry))), *running[host + 1 :])
            self.go(now, waiting & ~(1 << number), then, number)
        ends = [host[0][0] for host in running if host]
        if ends:
            after = min(ends)
            left = tuple(tuple(entry for entry in host if entry[0] > after + EPSILON) for host in running)
            if not self._known(after, waiting, left):
                self.go(after, waiting, left, 0)

    def _fits(self, waiting: int, running: Hosts, least: int) -> Iterator[tuple[int, int]]:
        tried = set()
        for number in range(least, len(self.rows)):
            if not waiting >> number & 1:
                continue
            for host, there in enumerate(running):
                row = self.rows[number]
                if (row, there) in tried:  # the same row, or on the same host, as before
                    continue
                tried.add((row, there))
                free = self.gpus - sum(self.rows[other].gpus for _, other in there)
                if row.gpus <= free and not any(
                    set(self.rows[other].exclusive) & set(row.exclusive) for _, other in there
                ):
                    yield number, host

    def _known(self, now: float, waiting: int, running: Hosts) -> bool:
        """Whether we were here before, no later."""
        ahead = (tuple((round(end - now, 6), *self._takes(number)) for end, number in host) for host in running)
        key = (waiting, tuple(sorted(ahead)))
        if self.seen.get(key, float("inf")) <= now + EPSILON:
            return True
        self.seen[key] = now
        return False

    def _takes(self, number: int) -> tuple[int, tuple[str, ...]]:
        return self.rows[number].gpus, self.rows[number].exclusive

    def _bound(self, now: float, waiting: int, running: Hosts) -> float:
        rest = [row for number, row in enumerate(self.rows) if waiting >> number & 1]
        there = [(end, self.rows[number]) for host in running for end, number in host]
        work = [(row.seconds, row) for row in rest] + [(end - now, row) for end, row in there]
        area = sum(seconds * row.gpus for seconds, row in work) / (self.gpus * self.hosts)
        alone = sum(seconds for seconds, row in work if row.gpus * 2 > self.gpus) / self.hosts
        last = max((end for end, _ in there), default=now)
        names = {name for _, row in work for name in row.exclusive}
        lone = max((sum(s for s, row in work if name in row.exclusive) / self.hosts for name in names), default=0.0)
        return max(last, now + max((row.seconds for row in rest), default=0.0), now + max(area, alone, lone))
