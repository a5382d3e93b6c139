"""Whether it was a person who pressed ^C: what `cancel` ended, or came to its end just then, does not say so."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
