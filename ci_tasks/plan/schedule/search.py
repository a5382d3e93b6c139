"""The best layout that can be found in a bounded number of tries: several orders, and small changes of the best ones.

Longest and widest rows first is good and not best: of two hosts, one may have to take the three middling rows. The
search lets two jobs of an order change places, or one step forward, as long as all rows end earlier by that. A job
never steps before one of an older `age`: so whatever is found, a row delays none that has waited much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

from ci_tasks.plan.schedule.layout import Job, Layout, again, lay
from ci_tasks.plan.schedule.timeline import EPSILON, Line

# What a search may cost, in units of some 0.2 µs; see `_Budget` for what a job costs. So a decision takes 30 ms where a
# search is worth it and finds nothing that is certainly best, and mostly far less.
WORK = 150_000
# Looks at a host, and jobs, that may go into the first layout; rows behind those start only where there is a gap.
FIRST_LOOKS, FIRST_JOBS = 6_000, 250
# Estimates are never better than that: a plan so close to what is possible is not searched for a better one, and a
# change that brings no more is not worth leaving the wide and long rows' precedence for.
NEAR = 1.0005


class _Budget:
    """The work that is left to a search. What it costs to lay out a job was measured: 8 to 250 jobs, 1 to 64 hosts."""

    def __init__(self, jobs: int, hosts: int) -> None:
        self.left = float(WORK)
        self._price = 6 + 2 * hosts + jobs / 3  # many jobs make long lines

    def pay(self, jobs: int) -> None:
        self.left -= jobs * self._price


def best(jobs: Sequence[Job], lines: Sequence[Line], ends: Sequence[float], bound: float, worth: bool) -> Layout:
    """The best layout of `jobs`; `worth` whether any job could start now, else the first one will do. `bound`: the
    seconds that no layout can beat."""
    planned = max(1, min(FIRST_JOBS, FIRST_LOOKS // max(1, len(lines))))
    orders = _orders(jobs)
    layout = lay(next(orders), lines, ends, planned)
    if not worth or len(jobs) > planned:
        return layout
    budget = _Budget(len(jobs), len(lines))
    found = [layout]
    for order in orders:
        if layout.end <= bound * NEAR:
            return layout
        layout = lay(order, lines, ends)
        budget.pay(len(jobs))
        found.append(layout)
    winner = min(found, key=lambda layout: layout.rank)
    for layout in sorted(found, key=lambda layout: layout.rank):
        if budget.left <= 0 or winner.end <= bound * NEAR:
            break
        layout = _improve(layout, bound, budget)
        winner = layout if _better(layout, winner) else winner
    return winner


def _orders(jobs: Sequence[Job]) -> Iterator[tuple[Job, ...]]:
    """Orders worth a try, the best first in most cases. Sorting keeps what was before where a key says nothing."""
    wide = sorted(jobs, key=lambda job: (-job.gpus, -job.seconds, job.position))
    long = sorted(wide, key=lambda job: -job.seconds)
    half = max((job.gpus for job in jobs), default=0) / 2
    keys: list[Callable[[Job], float]] = [
        lambda job: -job.gpus,
        lambda job: -job.seconds,
        lambda job: -job.seconds * job.gpus,
        lambda job: job.gpus <= half,
        lambda job: job.gpus,
    ]
    for key in keys:
        yield tuple(sorted(sorted(long, key=key), key=lambda job: -job.age))


def _improve(layout: Layout, bound: float, budget: _Budget) -> Layout:
    """Change `layout` until no change of one or two jobs makes it better."""
    count = len(layout.order)
    since = (count - 1) * (count - 1)  # so many changes there are
    left = since
    for first, second, swap in cycle(_changes(count)):
        if left <= 0 or budget.left <= 0 or layout.end <= bound * NEAR:
            break
        left -= 1
        order = _changed(layout.order, first, second, swap)
        if order is None:
            continue
        other, laid = again(layout, order, first)
        budget.pay(laid)
        if other is not None and _better(other, layout):
            layout, left = other, since
    return layout


def _changes(count: int) -> Iterator[tuple[int, int, bool]]:
    """Two jobs change places; or the second steps before the first. Late ones first: those cost least to try."""
    for swap in (True, False):
        for second in range(count - 1, 0, -1):
            for first in range(second - (1 if swap else 2), -1, -1):
                yield first, second, swap


def _changed(order: tuple[Job, ...], first: int, second: int, swap: bool) -> tuple[Job, ...] | None:
    one, other = order[first], order[second]
    if one.shape == other.shape or one.age != other.age:
        return None
    between = order[first + 1 : second]
    if swap:
        return (*order[:first], other, *between, one, *order[second + 1 :])
    return (*order[:first], other, one, *between, *order[second + 1 :])


def _better(one: Layout, other: Layout) -> bool:
    """Earlier by more than nothing; or as early, and the hosts are done at more even times."""
    if one.end * NEAR < other.end:
        return True
    return one.end < other.end + EPSILON and one.rank[1] * NEAR < other.rank[1]
