"""Signals wake the agent's one wait, and only two of them stop it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from ci_tasks.agent.signals import BLOCKED_AT_START, SignalPipe


@pytest.fixture
def signals() -> Iterator[SignalPipe]:
    numbers = (*BLOCKED_AT_START, signal.SIGCHLD, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    with SignalPipe() as pipe:
        yield pipe
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP])
def test_a_signal_wakes_the_wait_and_may_request_a_stop(signals: SignalPipe, number: int) -> None:
    os.kill(os.getpid(), number)
    signals.wait(600)
    assert select.select([signals.fd], [], [], 0)[0] == [], "it is not seen twice"
    assert signals.stop_requested == (number in (signal.SIGTERM, signal.SIGINT))
