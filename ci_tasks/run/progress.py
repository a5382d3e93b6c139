"""Showing a run while it goes on: in place on a terminal, one line per event elsewhere, a single row's log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from ci_tasks.agent.files import NotAFile, open_file
from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import RunDir, read_description, read_status_if_readable
from ci_tasks.errors import shortened, some
from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostProgress, RowProgress, expected_end, remaining
from ci_tasks.safe_output import LogFilter, SafeStream, escape, program_of, terminal_of, with_program

if TYPE_CHECKING:
    from rich.console import RenderableType

_REMINDER_SECONDS = 60.0  # seconds of silence after which plain output says what still runs
_LINE_MAX_AGE = 0.5  # seconds for which a row's last line serves, however fast its log grows
_LONGEST_LINE = 1000  # characters of a plain line
_MAX_REMINDED = 20  # rows in one reminder
_CACHE_SIZE = 1024  # rows whose last line and status are kept
_REFRESHES_PER_SECOND = 4.0  # a second; to draw 50 lines takes tens of milliseconds
_UNFINISHED = (RUNNING, WAITING)  # states of a row that has not ended


class ProgressView(Protocol):
    """What the execution of rows tells a person: how each stands, and each host where there are several. `left` is how
    many seconds all of it should still take, negative where it takes longer."""

    def print_message(self, text: str) -> None: ...

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None: ...

    def close(self) -> None: ...


def open_view(title: str, rows: Sequence[RunDir]) -> ProgressView:
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
        self._last_message_at = time.monotonic()

    def print_message(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {shortened(text, _LONGEST_LINE)}", flush=True)
        self._last_message_at = time.monotonic()

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        several = len(hosts) > 1
        if several:
            self._show_hosts(hosts)
        for progress in rows:
            if self._has_changed(progress):
                took = (
                    f" after {progress.seconds:.1f} s"
                    if progress.state not in _UNFINISHED and progress.seconds is not None
                    else ""
                )
                note = f": {progress.note}" if progress.state != RUNNING and progress.note else ""
                self.print_message(
                    f"{progress.state:<9} {progress.row}{_host_and_attempt(progress) if several else ''}{took}{note}"
                )
        if time.monotonic() - self._last_message_at > _REMINDER_SECONDS:
            self._remind(rows, several, left)

    def _has_changed(self, progress: RowProgress) -> bool:
        before, place = self._states.get(progress.row, WAITING), (progress.host, progress.attempt)
        self._states[progress.row] = progress.state
        if progress.state != WAITING and progress.host:
            last_place = self._places.get(progress.row, place)
            self._places[progress.row] = place
            return before != progress.state or last_place != place
        return before != progress.state

    def _show_hosts(self, hosts: Sequence[HostProgress]) -> None:
        for host in hosts:
            was_up = self._up.get(host.name)
            if was_up == host.up or (was_up is None and host.up and host.gpus is None):  # it is still being reached
                continue
            self._up[host.name] = host.up
            note = f": {host.note}" if host.note else ""
            if not host.up:
                self.print_message(f"host {host.name} is unreachable{note}")
            elif was_up is None:
                self.print_message(f"host {host.name} is connected, {host.gpus} GPU{'' if host.gpus == 1 else 's'}")
            else:
                self.print_message(f"host {host.name} is reachable again")

    def _remind(self, rows: Sequence[RowProgress], several: bool, left: float | None) -> None:
        running = [progress for progress in rows if progress.state in (RUNNING, STALLED)]
        waiting = [progress for progress in rows if progress.state == WAITING]
        if running:
            names = [f"{progress.row}{_host_and_attempt(progress) if several else ''}" for progress in running]
            self.print_message(
                f"still running: {some(names, _MAX_REMINDED)}; {len(waiting)} waiting{_expected_end(rows, left)}"
            )
        noted = [progress for progress in rows if progress.state in (WAITING, STALLED) and progress.note]
        for progress in noted[:_MAX_REMINDED]:
            self.print_message(f"still {progress.state}: {progress.row}: {progress.note}")

    def close(self) -> None:
        pass


def _host_and_attempt(progress: RowProgress) -> str:
    """What a line says of a row's place where there are several hosts."""
    place = f" on {progress.host}" if progress.host else ""
    return place + (f", attempt {progress.attempt}" if progress.attempt > 1 else "")


def _expected_end(rows: Sequence[RowProgress], left: float | None) -> str:
    """When all of it should have ended, by the clock on the wall where that is still to come."""
    text = expected_end(rows, left)
    is_known = left is not None and left >= 0 and text == remaining(left)
    at = time.strftime(", until %H:%M", time.localtime(time.time() + (left or 0.0))) if is_known else ""
    return f"; {text}{at}" if text else ""


class LiveView:
    """The table that changes in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console(file=terminal_of(sys.stdout))
        self._program = program_of(sys.stdout)
        self._progress: tuple[Sequence[RowProgress], Sequence[HostProgress], float | None] = ((), (), None)
        # It is asked only when it draws, which is less often than something changes.
        self._live = Live(
            console=self._console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True, get_renderable=self._table
        )
        self._live.start()  # what others print meanwhile goes above the table, through streams of rich's
        sys.stdout, sys.stderr = (SafeStream(stream, self._program) for stream in (sys.stdout, sys.stderr))

    def print_message(self, text: str) -> None:
        self._console.print(escape(with_program(text, self._program)), markup=False, highlight=False)

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        self._progress = (rows, hosts, left)  # at once, since another thread draws

    def _table(self) -> RenderableType:
        from ci_tasks.report.live import progress_table

        rows, hosts, left = self._progress
        return progress_table(self._title, rows, self._console.height, hosts, left)

    def close(self) -> None:
        self._live.stop()


class StreamView:
    """One row: its log as it is written, and a word on stderr when it stalls or waits for others."""

    def __init__(self, run: RunDir) -> None:
        self._log = GrowingLog(run.log)
        self._last_notice = ""

    def print_message(self, text: str) -> None:
        print(text, flush=True)

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        self._log.copy()
        progress = rows[0]
        if progress.log and progress.log != self._log.path:  # another attempt
            self._log.close()
            print(f"ci-tasks:{_host_and_attempt(progress).removeprefix(',')}", file=sys.stderr, flush=True)
            self._log = GrowingLog(progress.log)
            self._log.copy()
        notice = f"{progress.state}, {progress.note}" if progress.state in (STALLED, WAITING) and progress.note else ""
        if notice and notice != self._last_notice:
            print(f"ci-tasks: {notice}", file=sys.stderr, flush=True)
        self._last_notice = notice

    def close(self) -> None:
        self._log.copy()
        self._log.close()


def running_row_progress(
    row: str,
    run: RunDir,
    seconds: float,
    note: str,
    *,
    host: str = "",
    gpus: int = 0,
    left: float | None = None,
    first_run: bool = False,
    attempt: int = 1,
) -> RowProgress:
    """How a started row stands: it waits for what others hold, it is silent, or it runs and this is its last line.
    `note` is what its site says that it does just now, if that is something else. It is called for every running row,
    many times a second, so it reads only what has changed."""
    status = _status(run.path, _stamp(run.status))
    state, message = RUNNING, note
    if waiting := status.waiting:
        state, message, left = WAITING, "; ".join(waiting), None  # its time has not begun
    elif status.daemon_silent_seconds:
        state = STALLED
        message = f"{read_description(run).runtime} has not answered for {_roughly(status.daemon_silent_seconds)}"
    elif status.stalled:
        state, message = STALLED, f"no output for {read_description(run).stall_minutes:g} min"
    elif not note:
        message = "collecting what it leaves" if status.phase == "collecting" else _LAST.of(run)
    ids = status.gpu_ids or ()
    return RowProgress(row, state, seconds, message, host, gpus, ids, left, attempt, run.log, first_run)


def _roughly(seconds: float) -> str:
    """In steps, so that a line for each is not too many."""
    return f"{seconds // 10 * 10:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min"


@lru_cache(maxsize=_CACHE_SIZE)
def _status(path: str, stamp: tuple[int, ...]) -> Status:
    """The status of the run in `path`: the file is replaced whole when it changes, and then has another stamp."""
    return read_status_if_readable(RunDir(path)) if stamp else Status()


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


class _LastLines:
    """The last lines of logs that grow, each read only after it has grown and not too often."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int, str]] = {}  # path → when it was read, its size then, its line

    def of(self, run: RunDir) -> str:
        read_at, size, line = self._known.get(run.log, (-_LINE_MAX_AGE, -1, ""))
        now = time.monotonic()
        if now < read_at + _LINE_MAX_AGE:
            return line
        grown = _size(run.log)
        if grown != size:
            from ci_tasks.hosts.provision import last_line  # what follows a log alone needs none of it

            line = last_line(run)
        if len(self._known) >= _CACHE_SIZE:
            self._known.clear()
        self._known[run.log] = now, grown, line
        return line


_LAST = _LastLines()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class GrowingLog:
    """Copies a log to standard output as it grows: safe for a terminal, or with `raw` byte for byte."""

    def __init__(self, path: str, *, raw: bool = False) -> None:
        self.path = path
        self._offset = 0
        self._filter = None if raw else LogFilter()

    def copy(self) -> None:
        """Copy what has come since the last call."""
        try:
            with open_file(self.path) as source:
                source.seek(self._offset)
                while chunk := source.read(1 << 18):
                    self._write(self._filter.feed(chunk) if self._filter else chunk)
                    self._offset += len(chunk)
        except (FileNotFoundError, NotAFile):
            return
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Copy what was held back."""
        if self._filter:
            self._write(self._filter.flush())
            sys.stdout.buffer.flush()

    def _write(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
