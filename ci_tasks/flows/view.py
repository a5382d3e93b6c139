"""Showing a run while it goes on: in place on a terminal, one line per event elsewhere, a single row's log as it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from ci_tasks.report.live import RUNNING, STALLED, WAITING, Lane
from ci_tasks.runner.layout import RunDir, read_json

_REMINDER = 60.0  # seconds of silence after which plain output says what still runs
_TAIL = 4096
_GOING = (RUNNING, WAITING)  # states of a row that has not ended


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
                took = f" after {lane.seconds:.1f} s" if lane.state not in _GOING and lane.seconds is not None else ""
                note = f": {lane.note}" if lane.state != RUNNING and lane.note else ""
                self.say(f"{lane.state:<9} {lane.row}{took}{note}")
        if time.monotonic() - self._spoken > _REMINDER:
            self._remind(lanes)

    def _remind(self, lanes: Sequence[Lane]) -> None:
        running = [lane.row for lane in lanes if lane.state in (RUNNING, STALLED)]
        waiting = [lane for lane in lanes if lane.state == WAITING]
        if running:
            self.say(f"still running: {', '.join(running)}; {len(waiting)} waiting")
        for lane in waiting:
            if lane.note:
                self.say(f"still waiting: {lane.row}: {lane.note}")

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
    """One row: its log as it is written, byte for byte, and a word on stderr when it stalls or waits for others."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.log
        self._offset = 0
        self._said = ""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, lanes: Sequence[Lane]) -> None:
        self._offset = copy_from(self._path, self._offset)
        lane = lanes[0]
        said = f"{lane.state}, {lane.note}" if lane.state in (STALLED, WAITING) and lane.note else ""
        if said and said != self._said:
            print(f"ci-tasks: {said}", file=sys.stderr, flush=True)
        self._said = said

    def close(self) -> None:
        self._offset = copy_from(self._path, self._offset)


def copy_from(path: str, offset: int) -> int:
    """Copy what a growing file has beyond `offset` to standard output; returns the new offset."""
    try:
        with open(path, "rb") as source:
            source.seek(offset)
            while chunk := source.read(1 << 18):
                sys.stdout.flush()
                sys.stdout.buffer.write(chunk)
                offset += len(chunk)
    except FileNotFoundError:
        return offset
    sys.stdout.buffer.flush()
    return offset


def running_lane(row: str, run: RunDir, seconds: float, note: str) -> Lane:
    """How a started row stands: it waits for what others hold, it is silent, or it runs and this is its last line.
    `note` is what its site says that it does just now, if that is something else."""
    status, minutes = read_json(run.status), read_json(run.plan).get("stall_minutes", 0)
    if waiting := status.get("waiting"):
        return Lane(row, WAITING, seconds, "; ".join(waiting))
    if status.get("stalled"):
        return Lane(row, STALLED, seconds, f"no output for {minutes:g} min")
    return Lane(row, RUNNING, seconds, note or last_line(run))


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
