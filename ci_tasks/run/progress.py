"""What a terminal shows of a run: a table that changes in place, a line per event elsewhere, a single row's log."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ci_tasks.agent.files import NotAFile, open_file
from ci_tasks.agent.run_directory import RunDir, read_description, read_remote, read_status_if_readable
from ci_tasks.errors import counted, shortened, some
from ci_tasks.records import RUNNING, BatchResult
from ci_tasks.report import results
from ci_tasks.report.live import STALLED, WAITING, HostProgress, RowProgress
from ci_tasks.results import store
from ci_tasks.results.load import known_deviations
from ci_tasks.results.runs import last_line
from ci_tasks.run.events import Event, HostChanged, Message, ProgressView, RowChanged
from ci_tasks.safe_output import LogFilter, SafeStream, escape, terminal_of, terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

_REMINDER_SECONDS = 30.0  # seconds of silence after which plain output says what still runs
_LONGEST_LINE = 1000  # characters of a plain line
_MAX_REMINDED = 20  # rows in one reminder
_REFRESHES_PER_SECOND = 4.0  # a second; to draw 50 lines takes tens of milliseconds
# After a step's name; no two steps, or a job that prints many names would keep us busy.
_SCRIPT = re.compile(rb"##\[group\](Run [^\n]*)\n(?:(?:(?!##\[group\]).)*?\n)??##\[endgroup\]\n", re.DOTALL)
_LONGEST_SCRIPT = 1 << 16  # bytes
_STATES = {"row_waiting": WAITING, "row_started": RUNNING, "row_stalled": STALLED}


def open_view(title: str, rows: Sequence[RunDir], *, detach: bool = False) -> ProgressView:
    """The view that fits the terminal and the number of rows, and whether they will be left once they run."""
    if detach:  # how much is seen of those that run is chance
        return PlainView(says_what_runs=False)
    if len(rows) == 1:
        return StreamView(rows[0])
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveView(title)
    return PlainView()


class PlainView(ProgressView):
    """A line when a row starts, moves, ends or stalls, when a host comes or goes, and a reminder in between. With
    several hosts, which events name, a line says where a row is."""

    def __init__(self, *, says_what_runs: bool = True) -> None:
        self._says_what_runs = says_what_runs
        self._note = ""  # the last one
        self._shown: dict[str, str] = {}  # row → state of its last line
        self._known_hosts: set[str] = set()
        self._last_line_at = time.monotonic()

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            self._print(event.text)
        elif isinstance(event, RowChanged) and event.event != "row_placed":
            self.print_row(event)
        elif isinstance(event, HostChanged):
            stands = f" is connected, {counted(event.gpus or 0, 'GPU')}"
            if event.event == "host_down":  # which may be its Python or its packages as well as its link
                stands = f": {event.note}"
            elif event.host in self._known_hosts:
                stands = " is reachable again"
            self._known_hosts.add(event.host)
            self._print(f"host {event.host}{stands}")

    def update(self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = ()) -> None:
        if time.monotonic() - self._last_line_at < _REMINDER_SECONDS:
            return
        if running := [row.row for row in rows if row.state in (RUNNING, STALLED)]:
            waiting = sum(row.state == WAITING for row in rows)
            self._print(f"still running: {some(running, _MAX_REMINDED)}; {waiting} waiting")
        alike: dict[tuple[str, str], list[str]] = {}
        for row in [row for row in rows if row.state in (WAITING, STALLED) and row.note]:
            alike.setdefault((row.state, row.note), []).append(row.row)
        for (state, note), names in list(alike.items())[:_MAX_REMINDED]:
            self._print(f"still {state}: {some(names, _MAX_REMINDED)}: {note}")

    def print_row(self, event: RowChanged) -> None:
        state = event.status or _STATES[event.event]
        if state == self._shown.get(event.row, WAITING) == WAITING:
            return
        self._shown[event.row] = state
        if state == RUNNING and not self._says_what_runs:
            return
        took = f" after {event.seconds:.1f} s" if event.status and event.seconds is not None else ""
        note = "" if not event.note else ": as above" if event.note == self._note else f": {event.note}"
        self._note = event.note or self._note
        place = _host_and_attempt(event.host, event.attempt) if self._known_hosts else ""
        self._print(f"{state:<9} {event.row}{place}{took}{note}")

    def _print(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {shortened(text, _LONGEST_LINE)}", flush=True)
        self._last_line_at = time.monotonic()


def _host_and_attempt(host: str, attempt: int) -> str:
    """What a line says of a row's place if there are several hosts."""
    return (f" on {host}" if host else "") + (f", attempt {attempt}" if attempt > 1 else "")


class LiveView(ProgressView):
    """The table that changes in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console(file=terminal_of(sys.stdout))
        self._progress: tuple[Sequence[RowProgress], Sequence[HostProgress]] = ((), ())
        # It is asked only when it draws, which is less often than something changes.
        self._live = Live(
            console=self._console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True, get_renderable=self._table
        )
        self._live.start()  # what others print meanwhile goes above the table, through streams of rich's
        sys.stdout, sys.stderr = (SafeStream(stream) for stream in (sys.stdout, sys.stderr))

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            self._console.print(escape(event.text), markup=False, highlight=False)

    def update(self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = ()) -> None:
        self._progress = (rows, hosts)  # at once, since another thread draws

    def _table(self) -> RenderableType:
        from ci_tasks.report.live import ProgressTable

        rows, hosts = self._progress
        return ProgressTable(self._title, rows, self._console.height, hosts)

    def close(self) -> None:
        self._live.stop()


class StreamView(ProgressView):
    """One row: its log as it is written, without the scripts of its steps, and a word on stderr when it stalls or waits
    for others."""

    def __init__(self, run: RunDir) -> None:
        self._log = GrowingLog(run.log, folds=True)
        self._last_notice = ""

    def update(self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = ()) -> None:
        self._log.copy()
        row = rows[0]
        if row.log and row.log != self._log.path:  # another attempt
            self._log.close()
            place = _host_and_attempt(row.host, row.attempt).removeprefix(",")
            print(f"ci-tasks:{place}", file=sys.stderr, flush=True)
            self._log = GrowingLog(row.log, folds=True)
            self._log.copy()
        notice = f"{row.state}, {row.note}" if row.state in (STALLED, WAITING) and row.note else ""
        if notice and notice != self._last_notice:
            print(f"ci-tasks: {notice}", file=sys.stderr, flush=True)
        self._last_notice = notice

    def close(self) -> None:
        self._log.copy()
        self._log.close()


class GrowingLog:
    """Copies a log to standard output as it grows: safe for a terminal, or with `raw` byte for byte. With `folds`, only
    the name of a step stands for its script."""

    def __init__(self, path: str, *, raw: bool = False, folds: bool = False) -> None:
        self.path = path
        self._offset, self._folds, self._script = 0, folds, b""
        self._filter = None if raw else LogFilter()

    def copy(self) -> bool:
        """Copy what has come since the last call. Returns whether there is a log."""
        try:
            with open_file(self.path) as source:
                source.seek(self._offset)
                while chunk := source.read(1 << 18):
                    self._write(self._filter.feed(chunk) if self._filter else chunk)
                    self._offset += len(chunk)
        except (FileNotFoundError, NotAFile):
            return False
        sys.stdout.buffer.flush()
        return True

    def close(self) -> None:
        """Copy what was held back."""
        if self._filter:
            self._write(self._filter.flush())
            self._folds = False
            self._write(b"")
            sys.stdout.buffer.flush()

    def _write(self, data: bytes) -> None:
        data, self._script = self._script + data, b""
        if self._folds:
            where = f"  (its script: {self.path})\n".encode("utf-8", "replace")
            data = _SCRIPT.sub(lambda step: step[1] + where, data)
            begun = data.rfind(b"##[group]Run ")
            if begun >= 0 and len(data) - begun < _LONGEST_SCRIPT:  # its end is still to come
                data, self._script = data[:begun], data[begun:]
        sys.stdout.flush()
        sys.stdout.buffer.write(data)


# -- how a row stands --------------------------------------------------------------------------------------------------


def running_row_progress(row: str, run: RunDir, seconds: float, note: str, *, host: str = "") -> RowProgress:
    """How a started row stands: it waits for what others hold, it is silent, or it runs and this is its last line.
    `note` is what its host says that it does just now, if that is something else."""
    status = read_status_if_readable(run)
    state, message = RUNNING, note
    if status.waiting:
        state, message = WAITING, "; ".join(status.waiting)
    elif status.stalled:
        state, message = STALLED, f"no output for {read_description(run).stall_minutes:g} min"
    elif not note:
        message = "collecting results" if status.phase == "collecting" else last_line(run)
    return RowProgress(row, state, seconds, message, host, gpu_ids=status.gpu_ids or (), log=run.log)


def print_results(result: BatchResult, also: Sequence[str] = (), *, all_deviations: bool = False) -> BatchResult:
    """Print the table that ends a run, then what is `also` to be said. What differs from CI as in the label's last run
    is only counted, unless `all_deviations` are to be shown."""
    records, width = result.runs, terminal_width()
    runs = [RunDir(result.directories[record.id]) if record.id in result.directories else None for record in records]
    batches = list(dict.fromkeys(store.batch_of(record.id) for record in records))
    known = set() if all_deviations else known_deviations(batches, records)
    deviations = results.deviations(records, width, known, f"ci-tasks report {','.join(batches)} --deviations")
    times = results.wall_time(records)
    table = results.table(records, [run.log if run else "" for run in runs], width)
    ends = [*kept_lines(result), *also, f"{result.id}: {results.summary(records)}"]
    blocks = ["\n".join(lines) for lines in (table, deviations, times, ends) if lines]
    print("", "\n\n".join(blocks), sep="\n", flush=True)
    return result


def kept_lines(result: BatchResult) -> list[str]:
    """What a person may do with the rows that `--keep` kept."""
    runs = {id: RunDir(path) for id, path in result.directories.items()}
    kept = [id for id, run in runs.items() if read_status_if_readable(run).kept is not None]
    if not kept:
        return []
    lines = [f"kept: {counted(len(kept), 'row')}; `ci-tasks shell {kept[0]}` opens bash there"]
    remote = read_remote(runs[kept[0]])
    if (remote is None or remote.kind != "slurm") and not read_description(runs[kept[0]]).checkout.rev:
        lines.append(f"after an edit in your checkout, `ci-tasks retry {kept[0]}` runs the failed step again")
    return lines
