"""Reservations of GPUs, against other processes. The clock is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.gpus.request import GpuRequest
from ci_tasks.agent.gpus.reservation import GpuReservation, LockTimings

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _reservation(gpu_host: GpuHost, count: int, clock: Clock) -> GpuReservation:
    return GpuReservation(GpuRequest(count, pattern=gpu_host.pattern), LockTimings(stalled=100, sleep=6), clock)


def test_the_reservation_of_a_killed_process_is_free(gpu_host: GpuHost, clock: Clock) -> None:
    reservation = _reservation(gpu_host, 1, clock)
    holder = gpu_host.hold(GpuRequest(1, pattern=gpu_host.pattern).reservation_lock, 0)
    assert not reservation.start()
    gpu_host.end(holder)
    assert reservation.start()
    assert reservation.add(range(8))


def test_a_reservation_without_gain_is_given_up_for_a_while(gpu_host: GpuHost, clock: Clock) -> None:
    """Somebody may hold what we lack while waiting for what we hold."""
    gpu_host.hold(1)
    reservation = _reservation(gpu_host, 2, clock)
    assert reservation.start()
    assert not reservation.add([0, 1])
    clock.now += 99
    assert not reservation.add([0, 1])
    assert gpu_host.free(1) == []
    clock.now += 1
    assert not reservation.add([0, 1])
    assert (reservation.is_active, gpu_host.free(1)) == (False, [0])
    assert not reservation.start()
    clock.now += 6
    assert reservation.start()
