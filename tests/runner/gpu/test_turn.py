"""Turns and collecting, against other processes. The clock is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci_tasks.runner.gpu.request import Request
from ci_tasks.runner.gpu.turn import Pace, Turn

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _turn(box: GpuBox, count: int, clock: Clock) -> Turn:
    return Turn(Request(count, pattern=box.pattern), Pace(stuck=100, sleep=6), clock)


def test_one_has_the_turn_at_a_time(box: GpuBox, clock: Clock) -> None:
    one, other = _turn(box, 1, clock), _turn(box, 1, clock)
    assert (one.take(), other.take(), one.take()) == (True, False, True)
    one.pass_on()
    assert (one.is_ours, other.take()) == (False, True)


def test_the_turn_of_a_process_that_is_killed_is_free(box: GpuBox, clock: Clock) -> None:
    turn = _turn(box, 1, clock)
    holder = box.hold(Request(1, pattern=box.pattern).turn, 0)
    assert not turn.take()
    box.end(holder)
    assert turn.take()
    assert turn.collect(range(8))


def test_gpus_are_kept_as_they_come_free_until_there_are_enough(box: GpuBox, clock: Clock) -> None:
    first, second = box.hold(0, 1), box.hold(2, 3)
    turn = _turn(box, 4, clock)
    assert not turn.collect(range(4))
    box.end(first)
    assert not turn.collect(range(4))
    assert (sorted(turn.collected), box.free(4)) == ([0, 1], [])
    box.end(second)
    assert turn.collect(range(4))
    assert turn.let_go() == [0, 1, 2, 3]
    assert box.free(4) == [0, 1, 2, 3]


def test_no_more_than_enough_are_taken_and_the_lowest(box: GpuBox, clock: Clock) -> None:
    turn = _turn(box, 2, clock)
    assert turn.collect([5, 1, 3])
    assert (sorted(turn.collected), box.free()) == ([1, 3], [0, 2, 4, 5, 6, 7])
    turn.leave()


def test_who_gains_nothing_for_long_lets_go_and_rests(box: GpuBox, clock: Clock) -> None:
    """Somebody may hold what we lack while waiting for what we hold."""
    box.hold(1)
    turn = _turn(box, 2, clock)
    assert turn.take()
    assert not turn.collect([0, 1])
    clock.now += 99
    assert not turn.collect([0, 1])
    assert box.free(1) == []
    clock.now += 1
    assert not turn.collect([0, 1])
    assert (turn.is_ours, box.free(1)) == (False, [0])
    assert not turn.take()
    clock.now += 6
    assert turn.take()
