"""Showing a run while it goes on: in place on a terminal, one line per event elsewhere, a single row's log as it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from ci_tasks.report.live import RUNNING, STALLED, WAITING, Lane
from ci_tasks.runner.layout import RunDir

_REMINDER = 60.0  # seconds of silence after which plain output says what still runs
_TAIL = 4096


class View(Protocol):
    """What the execution of rows tells a person."""

    def say(self, text: str) -> None: ...

    def show(self, lanes: Sequence[Lane]) -> None: ...

    def close(self) -> None: ...


def open_view(title: str, rows: Sequence[RunDir]) -> View:
    """The view that fits the terminal and the number of rows."""
    if len(rows) == 1:
        return StreamView(rows[0])
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveView(title)
    return PlainView()


class PlainView:
    """A line when a row starts, ends or stalls, and a reminder in between."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._spoken = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
        self._spoken = time.monotonic()

    def show(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if self._states.get(lane.row, WAITING) != lane.state:
                self._states[lane.row] = lane.state
                began = lane.state in (RUNNING, WAITING)
                took = f" after {lane.seconds:.1f} s" if not began and lane.seconds is not None else ""
                self.say(f"{lane.state:<9} {lane.row}{took}{f': {lane.note}' if not began and lane.note else ''}")
        running = [lane.row for lane in lanes if lane.state in (RUNNING, STALLED)]
        if running and time.monotonic() - self._spoken > _REMINDER:
            waiting = sum(lane.state == WAITING for lane in lanes)
            self.say(f"still running: {', '.join(running)}; {waiting} waiting")

    def close(self) -> None:
        pass


class LiveView:
    """The table that changes in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, lanes: Sequence[Lane]) -> None:
        from ci_tasks.report.live import live

        self._live.update(live(self._title, lanes, self._console.height))

    def close(self) -> None:
        self._live.stop()


class StreamView:
    """One row: its log as it is written, byte for byte, and a word on stderr when it stalls."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.log
        self._offset = 0
        self._stalled = False

    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, lanes: Sequence[Lane]) -> None:
        self._offset = copy_from(self._path, self._offset)
        stalled = lanes[0].state == STALLED
        if stalled and not self._stalled:
            print(f"ci-tasks: stalled, {lanes[0].note}", file=sys.stderr, flush=True)
        self._stalled = stalled

    def close(self) -> None:
        self._offset = copy_from(self._path, self._offset)


def copy_from(path: str, offset: int) -> int:
    """Copy what a growing file has beyond `offset` to standard output; returns the new offset."""
    try:
        with open(path, "rb") as source:
            source.seek(offset)
            while chunk := source.read(1 << 16):
                sys.stdout.flush()
                sys.stdout.buffer.write(chunk)
                offset += len(chunk)
    except FileNotFoundError:
        return offset
    sys.stdout.buffer.flush()
    return offset


def last_line(run: RunDir) -> str:
    """The last whole line of a log, safe for a terminal."""
    from ci_tasks.judge.log import shown

    try:
        with open(run.log, "rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    return shown(lines[-1]) if lines else ""
