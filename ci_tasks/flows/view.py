"""Showing a run while it goes on: in place on a terminal, one line per event elsewhere, a single row's log as it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostLane, Lane, remaining
from ci_tasks.runner.layout import RunDir, read_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_REMINDER = 60.0  # seconds of silence after which plain output says what still runs
_TAIL = 1 << 14  # bytes: a line of verl's metrics alone has several thousand
_FRESH = 0.5  # seconds for which a row's last line serves, however fast its log grows
_MOST_SAID = 20  # rows in one reminder
_REMEMBERED = 1024  # rows whose last line and status are kept
_REFRESHED = 4.0  # a second; to draw 50 lines takes tens of milliseconds
_GOING = (RUNNING, WAITING)  # states of a row that has not ended
_COLLECTING = "collecting"  # the phase of a job that has ended and whose files are not all there yet


class View(Protocol):
    """What the execution of rows tells a person: how each stands, and each host where there are several. `left` is how
    many seconds all of it should still take, negative where it takes longer."""

    def say(self, text: str) -> None: ...

    def show(self, lanes: Sequence[Lane], hosts: Sequence[HostLane] = (), left: float | None = None) -> None: ...

    def close(self) -> None: ...


def open_view(title: str, rows: Sequence[RunDir]) -> View:
    """The view that fits the terminal and the number of rows."""
    if len(rows) == 1:
        return StreamView(rows[0])
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveView(title)
    return PlainView()


class PlainView:
    """A line when a row starts, moves, ends or stalls, when a host comes or goes, and a reminder in between."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._places: dict[str, tuple[str, int]] = {}  # row → host and attempt
        self._up: dict[str, bool] = {}
        self._spoken = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
        self._spoken = time.monotonic()

    def show(self, lanes: Sequence[Lane], hosts: Sequence[HostLane] = (), left: float | None = None) -> None:
        several = len(hosts) > 1
        if several:
            self._show_hosts(hosts)
        for lane in lanes:
            if self._is_news(lane):
                took = f" after {lane.seconds:.1f} s" if lane.state not in _GOING and lane.seconds is not None else ""
                note = f": {lane.note}" if lane.state != RUNNING and lane.note else ""
                self.say(f"{lane.state:<9} {lane.row}{_where(lane) if several else ''}{took}{note}")
        if time.monotonic() - self._spoken > _REMINDER:
            self._remind(lanes, several, left)

    def _is_news(self, lane: Lane) -> bool:
        before, place = self._states.get(lane.row, WAITING), (lane.host, lane.attempt)
        self._states[lane.row] = lane.state
        if lane.state != WAITING and lane.host:
            known = self._places.get(lane.row, place)
            self._places[lane.row] = place
            return before != lane.state or known != place
        return before != lane.state

    def _show_hosts(self, hosts: Sequence[HostLane]) -> None:
        for host in hosts:
            known = self._up.get(host.name)
            if known == host.up or (known is None and host.up and host.gpus is None):  # it is still being reached
                continue
            self._up[host.name] = host.up
            note = f": {host.note}" if host.note else ""
            if not host.up:
                self.say(f"host {host.name} is away{note}")
            elif known is None:
                self.say(f"host {host.name} is there, {host.gpus} GPU{'' if host.gpus == 1 else 's'}")
            else:
                self.say(f"host {host.name} is back")

    def _remind(self, lanes: Sequence[Lane], several: bool, left: float | None) -> None:
        running = [lane for lane in lanes if lane.state in (RUNNING, STALLED)]
        waiting = [lane for lane in lanes if lane.state == WAITING]
        if running:
            names = [f"{lane.row}{_where(lane) if several else ''}" for lane in running]
            self.say(f"still running: {_some(names)}; {len(waiting)} waiting{_expected(left)}")
        noted = [lane for lane in waiting if lane.note]
        for lane in noted[:_MOST_SAID]:
            self.say(f"still waiting: {lane.row}: {lane.note}")

    def close(self) -> None:
        pass


def _where(lane: Lane) -> str:
    """What a line says of a row's place where there are several hosts."""
    return f"{f' on {lane.host}' if lane.host else ''}{f', attempt {lane.attempt}' if lane.attempt > 1 else ''}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SAID
    return ", ".join(names[:_MOST_SAID]) + (f" and {more} more" if more > 0 else "")


def _expected(left: float | None) -> str:
    """When all of it should have ended, by the clock on the wall where that is still to come."""
    if left is None:
        return ""
    at = f", until {time.strftime('%H:%M', time.localtime(time.time() + left))}" if left >= 0 else ""
    return f"; {remaining(left)}{at}"


class LiveView:
    """The table that changes in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console()
        self._shown: tuple[Sequence[Lane], Sequence[HostLane], float | None] = ((), (), None)
        # It is asked only when it draws, which is less often than something changes.
        self._live = Live(
            console=self._console, refresh_per_second=_REFRESHED, transient=True, get_renderable=self._table
        )
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, lanes: Sequence[Lane], hosts: Sequence[HostLane] = (), left: float | None = None) -> None:
        self._shown = (lanes, hosts, left)  # at once, since another thread draws

    def _table(self) -> RenderableType:
        from ci_tasks.report.live import live

        lanes, hosts, left = self._shown
        return live(self._title, lanes, self._console.height, hosts, left)

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

    def show(self, lanes: Sequence[Lane], hosts: Sequence[HostLane] = (), left: float | None = None) -> None:
        self._offset = copy_from(self._path, self._offset)
        lane = lanes[0]
        if lane.log and lane.log != self._path:  # another attempt
            print(f"ci-tasks:{_where(lane).removeprefix(',')}", file=sys.stderr, flush=True)
            self._path, self._offset = lane.log, copy_from(lane.log, 0)
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


def running_lane(
    row: str,
    run: RunDir,
    seconds: float,
    note: str,
    *,
    host: str = "",
    gpus: int = 0,
    left: float | None = None,
    attempt: int = 1,
) -> Lane:
    """How a started row stands: it waits for what others hold, it is silent, or it runs and this is its last line.
    `note` is what its site says that it does just now, if that is something else. It is called for every running row,
    many times a second, so it reads only what has changed."""
    status = _status(run.status, _stamp(run.status))
    state, said = RUNNING, note
    if waiting := status.get("waiting"):
        state, said, left = WAITING, "; ".join(waiting), None  # its time has not begun
    elif status.get("stalled"):
        state, said = STALLED, f"no output for {read_json(run.plan).get('stall_minutes', 0):g} min"
    elif not note:
        said = "collecting what it leaves" if status.get("phase") == _COLLECTING else _LAST.of(run)
    ids = tuple(status.get("gpu_ids") or ())
    return Lane(row, state, seconds, said, host, gpus, ids, left, attempt, run.log)


@lru_cache(maxsize=_REMEMBERED)
def _status(path: str, stamp: tuple[int, ...]) -> dict[str, Any]:
    """The status in `path`, which is replaced whole when it changes, and then has another stamp."""
    return read_json(path) if stamp else {}


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


class _LastLines:
    """The last lines of logs that grow, each read only after it has grown and not too often."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int, str]] = {}  # path → when it was read, its size then, its line

    def of(self, run: RunDir) -> str:
        read_at, size, line = self._known.get(run.log, (-_FRESH, -1, ""))
        now = time.monotonic()
        if now < read_at + _FRESH:
            return line
        grown = _size(run.log)
        if grown != size:
            line = last_line(run)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[run.log] = now, grown, line
        return line


_LAST = _LastLines()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def last_line(run: RunDir) -> str:
    """The last line of a log, safe for a terminal; a line of metrics in short."""
    from ci_tasks.judge.progress import glance

    try:
        with open(run.log, "rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    return glance(lines[-1]) if lines else ""
