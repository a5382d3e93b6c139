"""^C: whether a person pressed it, and holding it back where it must not come between two lines."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_MOST = 4  # times that ^C is held back


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Gives whether ^C was pressed since the block began; it raises KeyboardInterrupt as ever."""
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # not ours to change: nohup, a notebook
        yield lambda: False
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupts:
    """^C for whoever runs rows. After `defer` it raises nothing: `count` is looked at between two steps, so that no row
    is lost because ^C came at the very line that started it. After `allow` it raises as ever."""

    def __init__(self) -> None:
        self.count = 0
        self._is_deferred = False
        self._previous: Any = None

    def defer(self) -> None:
        self._is_deferred = True
        previous = signal.getsignal(signal.SIGINT)
        if self._previous is None and callable(previous) and threading.current_thread() is threading.main_thread():
            self._previous = previous
            signal.signal(signal.SIGINT, self._press)

    def allow(self) -> None:
        """Raises KeyboardInterrupt where it was deferred."""
        self._is_deferred = False
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt where ^C was pressed."""
        if self.count:
            raise KeyboardInterrupt

    def restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _press(self, number: int, frame: Any) -> None:
        self.count += self._is_deferred
        try:
            self._previous(number, frame)  # somebody may wish to know, see `noticed`
        except KeyboardInterrupt:
            if not self._is_deferred or self.count > _MOST:  # of so many nobody looks at `count`: something hangs
                raise
