"""^C, SIGTERM and a terminal that is closed: all of them cancel, and are deferred while they must not come between two
lines."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_MOST = 4  # times that ^C is held back
_PATIENCE_S = 12.0  # after SIGTERM, which comes once: longer than a job's grace period
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt as ^C does, so that a command that is ended cleans up. One that
    is handled or ignored already (`nohup`) stays so."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in _SIGNALS[1:] if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Gives whether ^C was pressed since the block began; it raises KeyboardInterrupt as usual."""
    interrupts = Interrupts()
    interrupts.defer()
    interrupts.allow()
    try:
        yield lambda: interrupts.count > 0
    finally:
        interrupts.restore()


class Interrupts:
    """^C while rows run, and what `termination_interrupts` makes of other signals. After `defer` it raises nothing:
    `count` is looked at between two steps, so that no row is lost because ^C came at the very line that started it.
    After `allow` it raises as usual."""

    def __init__(self) -> None:
        self._pressed, self._terminated_at = 0, math.inf
        self._is_deferred = False
        self._previous: dict[int, Any] = {}

    @property
    def count(self) -> int:
        """How often ^C was pressed. SIGTERM counts once more, and again, as time goes by: no person presses on."""
        return self._pressed + min(2, int(max(0.0, time.monotonic() - self._terminated_at) / _PATIENCE_S))

    def defer(self) -> None:
        self._is_deferred = True
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if callable(previous):
                self._previous[number] = previous
                signal.signal(number, self._press)

    def allow(self) -> None:
        """Raises KeyboardInterrupt if it was deferred."""
        self._is_deferred = False
        if self.count:
            raise KeyboardInterrupt

    def leave_on_hangup(self) -> None:
        """From now on a terminal that is closed ends this process and nothing else: rows that run continue without
        it."""
        if signal.SIGHUP in self._previous:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _press(self, number: int, frame: Any) -> None:
        self._pressed += 1
        if number == signal.SIGTERM:
            self._terminated_at = time.monotonic()
        try:
            self._previous[number](number, frame)  # a caller may wish to know, see `noticed`
        except KeyboardInterrupt:
            if not self._is_deferred or self._pressed > _MOST:  # so many are not read from `count`: something hangs
                raise
