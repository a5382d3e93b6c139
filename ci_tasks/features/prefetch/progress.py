"""How far a download is: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from ci_tasks.errors import printable

_EVERY = 10.0  # seconds between two lines where nothing can be overwritten
_WIDEST = 110  # characters of a line that is overwritten


class ProgressLine:
    """Writes to `out`, and leaves whole lines behind."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._overwrites = out.isatty()
        self._open = False
        self._name, self._written = "", 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def say(self, text: str) -> None:
        self._close()
        print(printable(text), file=self._out, flush=True)

    def progress(self, name: str, message: str) -> None:
        """`words` are the downloading program's last ones."""
        text = printable(f"{name}: {message or 'downloading'}")
        if self._overwrites:
            self._out.write(f"\r\x1b[K{text[:_WIDEST]}")
            self._out.flush()
            self._open = True
        elif name != self._name or self._clock() - self._written >= _EVERY:
            self._name, self._written = name, self._clock()
            print(text, file=self._out, flush=True)

    def _close(self) -> None:
        if self._open:
            print(file=self._out, flush=True)
            self._open = False
