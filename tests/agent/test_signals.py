"""A wait ends when the agent is asked to stop, and by no other signal: each program that it has started sends one."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from ci_tasks.agent.signals import SignalPipe


@pytest.fixture
def signals() -> Iterator[SignalPipe]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    with SignalPipe() as pipe:
        yield pipe
    for number, handler in before.items():
        signal.signal(number, handler)


Wait = Callable[..., list[float]]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Let each wait last one second, or what it may, with `number` sent meanwhile. Returns how long each may last."""

    def play(*numbers: int) -> list[float]:
        timeouts: list[float] = []
        coming, clock, real = iter(numbers), [100.0], select.select

        def wait(readable: list[int], _w: object, _x: object, timeout: float) -> None:
            assert not real(readable, [], [], 0)[0], "what came before is not waited for again"
            timeouts.append(timeout)
            number = next(coming, 0)
            clock[0] += min(1.0, timeout) if number else timeout
            if number:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(select, "select", wait)
        return timeouts

    return play


def test_a_wait_lasts_its_time_whatever_ends_meanwhile(signals: SignalPipe, waits: Wait) -> None:
    os.kill(os.getpid(), signal.SIGCHLD)
    timeouts = waits(signal.SIGCHLD, signal.SIGHUP, signal.SIGCHLD)
    assert not signals.wait_for_stop(10.0)
    assert timeouts == [10.0, 9.0, 8.0, 7.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_wait_ends_when_the_agent_is_to_stop(signals: SignalPipe, waits: Wait, number: int) -> None:
    timeouts = waits(signal.SIGCHLD, number)
    assert signals.wait_for_stop(10.0)
    assert timeouts == [10.0, 9.0]
    assert signals.wait_for_stop(10.0)
    assert timeouts == [10.0, 9.0]
