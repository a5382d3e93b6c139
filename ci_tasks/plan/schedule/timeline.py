"""What of one host is free when: a line of segments, each from its start to the next one's, the last without an end.

A line is never changed: `book` returns another. So a plan may keep the lines of all its steps and go on from any.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

EPSILON = 1e-6  # seconds; sums of the same times in another order differ by less
# Segments' starts, and of each: GPUs free, slots free, names that are taken (as bits).
Line = tuple[list[float], list[int], list[int], list[int]]


def empty(gpus: int, slots: int) -> Line:
    """The line of a host on which nothing runs."""
    return [0.0], [gpus], [slots], [0]


def fits_now(line: Line, gpus: int, names: int) -> bool:
    """Whether the host could take such a row at this moment, however long for."""
    return line[1][0] >= gpus and line[2][0] > 0 and not line[3][0] & names


def earliest(line: Line, gpus: int, names: int, seconds: float) -> float:
    """When a row could start at the soonest and stay `seconds` long; infinite if never."""
    starts, free, slots, taken = line
    begin, end = 0.0, seconds - EPSILON
    broken = False
    for at, gpus_free, slots_free, names_taken in zip(starts, free, slots, taken):  # noqa: B905 - one length, hot
        if not broken and at >= end:
            return begin
        if gpus_free < gpus or slots_free < 1 or names_taken & names:
            broken = True
        elif broken:
            broken, begin, end = False, at, at + seconds - EPSILON
    return inf if broken else begin


def free_at(line: Line, moment: float) -> int:
    """GPUs that are free from `moment`, which is the start of a segment."""
    return line[1][bisect_left(line[0], moment - EPSILON)]


def book(line: Line, begin: float, seconds: float, gpus: int, names: int = 0, slots: int = 1) -> Line:
    """The line with so much of it taken from `begin`, the start of a segment, for `seconds`. What is not there cannot
    be taken: none are free then, and not fewer."""
    starts, free, places, taken = line[0].copy(), line[1].copy(), line[2].copy(), line[3].copy()
    end = begin + seconds
    first, last = bisect_left(starts, begin - EPSILON), bisect_left(starts, end - EPSILON)
    if last == len(starts) or starts[last] > end + EPSILON:
        starts.insert(last, end)
        free.insert(last, free[last - 1])
        places.insert(last, places[last - 1])
        taken.insert(last, taken[last - 1])
    for segment in range(first, last):
        free[segment] = max(0, free[segment] - gpus)
        places[segment] -= slots
        taken[segment] |= names
    return starts, free, places, taken
