"""What a terminal shows of a run: a table that changes in place, a line per event elsewhere, a single row's log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ci_tasks.agent.files import NotAFile, open_file
from ci_tasks.agent.run_directory import RunDir, read_description, read_status_if_readable
from ci_tasks.errors import counted, shortened, some
from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostProgress, RowProgress, expected_end
from ci_tasks.run.events import Event, HostChanged, Message, ProgressView, RowChanged
from ci_tasks.safe_output import LogFilter, SafeStream, escape, terminal_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_REMINDER_SECONDS = 60.0  # seconds of silence after which plain output says what still runs
_LONGEST_LINE = 1000  # characters of a plain line
_MAX_REMINDED = 20  # rows in one reminder
_LEAST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 0.5  # between two looks at all rows
_REFRESHES_PER_SECOND = 4.0  # a second; to draw 50 lines takes tens of milliseconds
_STATES = {"row_waiting": WAITING, "row_started": RUNNING, "row_stalled": STALLED}


def open_view(title: str, rows: Sequence[RunDir]) -> ProgressView:
    """The view that fits the terminal and the number of rows."""
    if len(rows) == 1:
        return StreamView(rows[0])
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveView(title)
    return PlainView()


class PlainView:
    """A line when a row starts, moves, ends or stalls, when a host comes or goes, and a reminder in between. With
    several hosts, of which events tell, a line says where a row is."""

    def __init__(self) -> None:
        self._note = ""  # the last one
        self._shown: dict[str, tuple[str, str, int]] = {}  # row → state, host and attempt of its last line
        self._known_hosts: set[str] = set()
        self._last_line_at = time.monotonic()

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            self._print(event.text)
        elif isinstance(event, RowChanged) and event.event != "row_placed":
            self.print_row(event)
        elif isinstance(event, HostChanged):
            self._print_host(event)

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        if time.monotonic() - self._last_line_at > _REMINDER_SECONDS:
            self._remind(rows, left)

    def close(self) -> None:
        pass

    def print_row(self, event: RowChanged) -> None:
        state = event.status or _STATES[event.event]
        standing = (state, event.host, event.attempt)
        before = self._shown.get(event.row, (WAITING, "", 1))
        self._shown[event.row] = standing
        if state == before[0] and (state == WAITING or not event.host or standing == before):
            return
        is_timed = event.status is not None and event.seconds is not None
        took = f" after {event.seconds:.1f} s" if is_timed else ""
        note = "" if not event.note else ": as above" if event.note == self._note else f": {event.note}"
        self._note = event.note or self._note
        place = _host_and_attempt(event.host, event.attempt) if self._known_hosts else ""
        self._print(f"{state:<9} {event.row}{place}{took}{note}")

    def _print_host(self, event: HostChanged) -> None:
        stands = f" is connected, {counted(event.gpus or 0, 'GPU')}"
        if event.event == "host_down":  # which may be its Python or its packages as well as its link
            stands = f": {event.note}"
        elif event.host in self._known_hosts:
            stands = " is reachable again"
        self._known_hosts.add(event.host)
        self._print(f"host {event.host}{stands}")

    def _remind(self, rows: Sequence[RowProgress], left: float | None) -> None:
        running = [row.row for row in rows if row.state in (RUNNING, STALLED)]
        waiting = sum(row.state == WAITING for row in rows)
        if running:
            end = expected_end(rows, left)
            names = some(running, _MAX_REMINDED)
            self._print(f"still running: {names}; {waiting} waiting{f'; {end}' if end else ''}")
        noted = [row for row in rows if row.state in (WAITING, STALLED) and row.note]
        for row in noted[:_MAX_REMINDED]:
            self._print(f"still {row.state}: {row.row}: {row.note}")

    def _print(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {shortened(text, _LONGEST_LINE)}", flush=True)
        self._last_line_at = time.monotonic()


def _host_and_attempt(host: str, attempt: int) -> str:
    """What a line says of a row's place if there are several hosts."""
    return (f" on {host}" if host else "") + (f", attempt {attempt}" if attempt > 1 else "")


class LiveView:
    """The table that changes in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console(file=terminal_of(sys.stdout))
        self._progress: tuple[Sequence[RowProgress], Sequence[HostProgress], float | None] = ((), (), None)
        # It is asked only when it draws, which is less often than something changes.
        self._live = Live(
            console=self._console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True, get_renderable=self._table
        )
        self._live.start()  # what others print meanwhile goes above the table, through streams of rich's
        sys.stdout, sys.stderr = (SafeStream(stream) for stream in (sys.stdout, sys.stderr))

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            self._console.print(escape(event.text), markup=False, highlight=False)

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

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            print(event.text, flush=True)

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        self._log.copy()
        row = rows[0]
        if row.log and row.log != self._log.path:  # another attempt
            self._log.close()
            place = _host_and_attempt(row.host, row.attempt).removeprefix(",")
            print(f"ci-tasks:{place}", file=sys.stderr, flush=True)
            self._log = GrowingLog(row.log)
            self._log.copy()
        notice = f"{row.state}, {row.note}" if row.state in (STALLED, WAITING) and row.note else ""
        if notice and notice != self._last_notice:
            print(f"ci-tasks: {notice}", file=sys.stderr, flush=True)
        self._last_notice = notice

    def close(self) -> None:
        self._log.copy()
        self._log.close()


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


# -- how a row stands --------------------------------------------------------------------------------------------------


def pause_after(seconds: float) -> float:
    """How long rows are not looked at after a look that took so long: of many, looking takes a tenth of the time."""
    return min(max(_LEAST_PAUSE_SECONDS, 9 * seconds), _LONGEST_PAUSE_SECONDS)


def running_row_progress(row: str, run: RunDir, seconds: float, note: str, *, host: str = "") -> RowProgress:
    """How a started row stands: it waits for what others hold, it is silent, or it runs and this is its last line.
    `note` is what its host says that it does just now, if that is something else."""
    from ci_tasks.hosts.provision import last_line  # what follows a log alone needs none of it

    status = read_status_if_readable(run)
    state, message = RUNNING, note
    if status.waiting:
        state, message = WAITING, "; ".join(status.waiting)
    elif status.stalled:
        state, message = STALLED, f"no output for {read_description(run).stall_minutes:g} min"
    elif not note:
        message = "collecting what it leaves" if status.phase == "collecting" else last_line(run)
    return RowProgress(row, state, seconds, message, host, gpu_ids=status.gpu_ids or (), log=run.log)
