"""A plan for all rows that wait, laid out in an order: each row in turn where and when it can start soonest beside
those before it. So a row never delays one that comes before it, and later rows fill the gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ci_tasks.plan.schedule.timeline import EPSILON, Line, book, earliest, fits_now, free_at


@dataclass(frozen=True)
class Job:
    """A row as a plan sees it: `names` as bits, and the hosts that can take it, each with what speaks against it, in
    seconds that the row would rather wait for another one. No job may delay one of an older `age`."""

    position: int
    gpus: int
    names: int
    seconds: float
    hosts: tuple[tuple[int, float], ...]
    age: int = 0

    @property
    def shape(self) -> tuple[int, int, float, tuple[tuple[int, float], ...]]:
        """Jobs of one shape can change places without any difference."""
        return self.gpus, self.names, self.seconds, self.hosts


@dataclass(frozen=True)
class Layout:
    """Where (`hosts`) and when (`starts`) each job of `order` starts; a start of inf is one nobody thought about.
    `lines` are the hosts' lines before each job, `ends` when each host is done, before each job."""

    order: tuple[Job, ...]
    starts: list[float]
    hosts: list[int]
    lines: list[list[Line]]
    ends: list[list[float]]
    end: float

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: an earlier end of all, then hosts that are done at about one time."""
        return self.end, sum(end * end for end in self.ends[-1])


def lay(order: tuple[Job, ...], lines: Sequence[Line], ends: Sequence[float], planned: int | None = None) -> Layout:
    """Lay out `order` on hosts of which `lines` is free and `ends` says when they are done with what runs there. Only
    the first `planned` jobs are given a time to come; the others start now, where no job before them minds, or never.
    """
    layout = Layout(order, [], [], [list(lines)], [list(ends)], max(ends, default=0.0))
    count = len(order) if planned is None else min(planned, len(order))
    laid = _go_on(layout, count, inf)
    assert laid is not None  # nothing ends after infinity
    return _fill(laid) if count < len(order) else laid


def again(layout: Layout, order: tuple[Job, ...], first: int) -> tuple[Layout | None, int]:
    """The layout of `order`, which is that of `layout` up to the position `first`, None if it ends later; and how many
    jobs were laid out for that."""
    known = Layout(
        order,
        layout.starts[:first],
        layout.hosts[:first],
        layout.lines[: first + 1],
        layout.ends[: first + 1],
        max(layout.ends[first]),
    )
    return _go_on(known, len(order), layout.end + EPSILON), len(known.starts) - first + 1


def _go_on(layout: Layout, count: int, latest: float) -> Layout | None:
    lines, ends, end = list(layout.lines[-1]), list(layout.ends[-1]), layout.end
    for job in layout.order[len(layout.starts) : count]:
        host, start = _soonest(job, lines)
        done = start + job.seconds
        if done > latest:
            return None
        lines[host] = book(lines[host], start, job.seconds, job.gpus, job.names)
        ends[host], end = max(ends[host], done), max(end, done)
        layout.starts.append(start)
        layout.hosts.append(host)
        layout.lines.append(list(lines))
        layout.ends.append(list(ends))
    return Layout(layout.order, layout.starts, layout.hosts, layout.lines, layout.ends, end)


def _soonest(job: Job, lines: Sequence[Line]) -> tuple[int, float]:
    """Host and start. Of hosts that are as good, the one with fewest GPUs left over: wide rows need the rest."""
    best, host, start, spare = inf, -1, inf, -1
    for candidate, cost in job.hosts:
        when = earliest(lines[candidate], job.gpus, job.names, job.seconds)
        if when + cost > best + EPSILON:
            continue
        if when + cost > best - EPSILON:
            if spare < 0:
                spare = free_at(lines[host], start)
            left_over = free_at(lines[candidate], when)
            if left_over >= spare:
                continue
            spare = left_over
        else:
            spare = -1
        best, host, start = when + cost, candidate, when
    return host, start


def _fill(layout: Layout) -> Layout:
    """The rest of the jobs, where they can start at this moment without any harm."""
    lines, ends, end = list(layout.lines[-1]), list(layout.ends[-1]), layout.end
    gaps = {host for host, line in enumerate(lines) if line[2][0] > 0}
    for job in layout.order[len(layout.starts) :]:
        host = -1
        if gaps:
            host = _gap(job, lines, gaps)
        layout.hosts.append(host)
        layout.starts.append(inf if host < 0 else 0.0)
        if host >= 0:
            lines[host] = book(lines[host], 0.0, job.seconds, job.gpus, job.names)
            ends[host], end = max(ends[host], job.seconds), max(end, job.seconds)
            if lines[host][2][0] < 1:
                gaps.discard(host)
    return Layout(layout.order, layout.starts, layout.hosts, [*layout.lines, lines], [*layout.ends, ends], end)


def _gap(job: Job, lines: Sequence[Line], gaps: set[int]) -> int:
    found, best = -1, (inf, inf)
    for host, cost in job.hosts:
        line = lines[host]
        if host in gaps and fits_now(line, job.gpus, job.names) and (cost, line[1][0]) < best:
            if earliest(line, job.gpus, job.names, job.seconds) > 0:
                continue
            found, best = host, (cost, line[1][0])
    return found
