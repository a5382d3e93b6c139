"""How long rows are expected to take: from history, without one, and once they have run longer than that."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from statistics import median

from ci_tasks.plan.schedule.values import Running, Task

# What is left of a row that ran past its estimate, as a part of the time it has run. The guess grows with the row:
# nothing is kept waiting for an end that is always "now", and a row that is merely a little late is not given up.
OVERRUN = 0.25
_SHORTEST, _LONGEST = 0.01, 30 * 86400.0


def prior(gpus: int) -> float:
    """Seconds that a row is expected to take of which nothing is known.

    slime's CPU rows were measured at 0.1 to 217 s; half a minute lies above their middle, for a row that ends early
    does less harm than one that ends late. Its GPU rows take minutes to tens of minutes, and those on few GPUs are the
    short ones by name: 5 minutes, and 75 s for each GPU, which makes a quarter of an hour on eight.
    """
    return 300.0 + 75.0 * gpus if gpus > 0 else 30.0


def expected(row: str, known: Mapping[str, float], gpus: int) -> float:
    """Seconds that `row` is expected to take. `known`: seconds by row. A mode of a test that never ran here
    (`test[mode]`) is taken to last as long as the other modes did."""
    if row in known:
        return known[row]
    test = row.partition("[")[0]
    siblings = [seconds for name, seconds in known.items() if name.partition("[")[0] == test]
    return median(siblings) if siblings else prior(gpus)


def length(task: Task) -> float:
    """The expected seconds of a row, as a number that a plan can be made with whatever history says."""
    seconds = task.seconds if isfinite(task.seconds) and task.seconds >= 0 else prior(task.gpus)
    return min(max(seconds, _SHORTEST), _LONGEST)


def remaining(row: Running) -> float:
    """Seconds until a row that runs is expected to end; always more than 0."""
    left = length(row.task) - row.since
    return left if left > 0 else max(OVERRUN * row.since, _SHORTEST)
