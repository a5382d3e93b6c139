"""How far a download is, for whoever waits: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

from ci_tasks.errors import printable
from ci_tasks.report.prefetch import Line
from ci_tasks.runner.hub.sizes import human

_EVERY = 10.0  # seconds between two lines where nothing can be overwritten
_WIDEST = 110  # characters of a line that is overwritten


class Shown:
    """Writes to `out`, and leaves whole lines behind."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._overwrites = out.isatty()
        self._open = False
        self._name, self._begun, self._first, self._told = "", 0.0, 0, -_EVERY

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def say(self, text: str) -> None:
        self._close()
        print(printable(text), file=self._out, flush=True)

    def progress(self, line: Line, news: Mapping[str, Any]) -> None:
        """What the host tells while it fetches: see ci_tasks.runner.hub.fetch."""
        if "note" in news:
            self.say(f"{line.name}: {news['note']}")
        elif news.get("waits"):
            self._show(line, "another fetches it; waiting", last=False)
        elif "done" in news:
            done, total, loaded = int(news["done"]), int(news["total"]), int(news["loaded"])
            self._show(line, self._words(line, done, total, loaded), last=done >= total)

    def _words(self, line: Line, done: int, total: int, loaded: int) -> str:
        if line.name != self._name:
            self._name, self._begun, self._first = line.name, self._clock(), loaded
        took = self._clock() - self._begun
        speed = (loaded - self._first) / took if took > 1 else 0
        percent = 100 * done // total if total else 100
        left = f", {human(speed)}/s, {_time((total - done) / speed)} left" if speed > 0 and done < total else ""
        return f"{human(done)} of {human(total)} ({percent} %){left}"

    def _show(self, line: Line, text: str, *, last: bool) -> None:
        if not (self._overwrites or last or self._clock() - self._told >= _EVERY):
            return
        self._told = self._clock()
        words = printable(f"{line.name}: {text}")
        if self._overwrites:
            self._out.write(f"\r\x1b[K{words[:_WIDEST]}")
            self._out.flush()
            self._open = True
        else:
            print(words, file=self._out, flush=True)

    def _close(self) -> None:
        if self._open:
            print(file=self._out, flush=True)
            self._open = False


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes}:{rest:02}"
