"""Which waiting rows may start now. Above each case stands its reason."""

from __future__ import annotations

import pytest

from ci_tasks.plan.placement import Need, startable

CASES = [
    # nothing waits
    ([], [], 8, 4, []),
    # all fit
    ([1, 2, 4], [], 8, 4, [0, 1, 2]),
    # in order, as many as fit beside what runs
    ([4, 4], [4], 8, 4, [0]),
    # what runs has all GPUs
    ([1], [8], 8, 4, []),
    # a wide row is not starved: narrower ones behind it wait with it
    ([8, 1, 1], [1], 8, 4, []),
    # rows before the wide one start
    ([1, 8, 1], [], 8, 4, [0]),
    # rows without GPUs pass it
    ([8, 0, 1, 0], [1], 8, 8, [1, 3]),
    # rows without GPUs start on a host without any
    ([0, 0], [], 0, 4, [0, 1]),
    # no more than asked for at once, however many GPUs are free
    ([1, 1, 1], [], 8, 2, [0, 1]),
    # those that run count
    ([0, 0], [0, 0], 8, 3, [0]),
    # no place at all
    ([0], [0], 8, 1, []),
    # a row that can never fit holds back those with GPUs, and its being blocked is the caller's to say
    ([9, 1], [], 8, 2, []),
    # rows that pass take places too
    ([8, 0, 0, 0], [1], 8, 3, [1, 2]),
]


@pytest.mark.parametrize(("waiting", "running", "gpus", "at_once", "chosen"), CASES)
def test_rows_that_may_start(
    waiting: list[int], running: list[int], gpus: int, at_once: int, chosen: list[int]
) -> None:
    assert startable([Need(wanted) for wanted in waiting], [Need(held) for held in running], gpus, at_once) == chosen


RAY = ("ray-host-network",)


@pytest.mark.parametrize(
    ("waiting", "running", "chosen"),
    [
        # two that need the same port never run side by side, however many GPUs are free
        ([Need(2, RAY), Need(2, RAY)], [], [0]),
        ([Need(2, RAY)], [Need(2, RAY)], []),
        # another row with GPUs does not overtake the one that waits, one without does
        ([Need(2, RAY), Need(2), Need(0)], [Need(2, RAY)], [2]),
        ([Need(2), Need(2, RAY)], [Need(2)], [0, 1]),
    ],
)
def test_rows_that_cannot_share_their_host(waiting: list[Need], running: list[Need], chosen: list[int]) -> None:
    assert startable(waiting, running, 8, 8) == chosen


def test_every_row_of_a_long_queue_starts_at_last_and_the_gpus_are_never_overcommitted() -> None:
    waiting = [Need((n * 5) % 9) for n in range(40)]
    running: list[Need] = []
    started = 0
    while waiting:
        for place in reversed(startable(waiting, running, 8, 4)):
            running.append(waiting.pop(place))
            started += 1
        assert sum(need.gpus for need in running) <= 8 and 0 < len(running) <= 4
        running.pop(0)
    assert started == 40
