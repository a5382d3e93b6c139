"""`--events`: what happens while rows run, one JSON object a line, for a program that watches.

    with open_events("-") as events:          or a file
        view = EventView(view, events)        tells both: people what `view` shows, the program what has changed
        events.exit_code = …

Each line is written at once. A reader that goes away and a full disk end the events, not the run; without a reader the
command ends as with any closed pipe. The last line of a command is `command_ended`. Texts (`note`, `text`, `step`) may
quote what a job or a host wrote.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Literal

from ci_tasks import known_secrets
from ci_tasks.agent.codec import encode, masked_record
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import EXIT_BUG, EXIT_CANCELLED, CiTasksError, UsageError
from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostProgress, RowProgress
from ci_tasks.results.runs import events_of
from ci_tasks.run.progress import ProgressView

STDOUT = "-"
_STATE_EVENTS: dict[str, Literal["row_waiting", "row_started", "row_stalled"]] = {
    WAITING: "row_waiting",
    RUNNING: "row_started",
    STALLED: "row_stalled",
}


@dataclass(frozen=True)
class RunPrepared:
    """Rows are planned and about to start. `directory` has their run directories."""

    time: str
    id: str
    label: str
    host: str
    rows: tuple[str, ...]
    commit: str
    tree: str
    directory: str
    event: Literal["run_prepared"] = "run_prepared"


@dataclass(frozen=True)
class RowChanged:
    """A row waits, runs on a host, writes nothing, or has ended with a status, which only the end has. `note` says what
    it waits for, or why it ended so; `directory` is that of its run, "" before it has one."""

    time: str
    event: Literal["row_waiting", "row_started", "row_stalled", "row_ended"]
    row: str
    host: str
    attempt: int
    note: str = ""
    status: str | None = None
    seconds: float | None = None
    directory: str = ""


@dataclass(frozen=True)
class RowStep:
    """A step of CI's job begins."""

    time: str
    row: str
    step: str
    event: Literal["row_step"] = "row_step"


@dataclass(frozen=True)
class HostChanged:
    """A host is connected or unreachable; `note` says why."""

    time: str
    event: Literal["host_up", "host_down"]
    host: str
    note: str = ""


@dataclass(frozen=True)
class Message:
    """A sentence for people."""

    time: str
    text: str
    event: Literal["message"] = "message"


@dataclass(frozen=True)
class RunEnded:
    """All rows have ended; `--repeat` has one for each repetition."""

    time: str
    id: str
    status: str
    exit_code: int
    event: Literal["run_ended"] = "run_ended"


@dataclass(frozen=True)
class CommandEnded:
    """The last line. `error` is the message of a command that ended with an error."""

    time: str
    exit_code: int
    error: str = ""
    event: Literal["command_ended"] = "command_ended"


Event = RunPrepared | RowChanged | RowStep | HostChanged | Message | RunEnded | CommandEnded


class EventStream:
    """Writes events to a file descriptor, from any thread. The command sets `exit_code` before its end. `lost_reader`:
    nobody reads from the pipe any more."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._lock = threading.Lock()
        self.lost_reader = False
        self._whole = os.fstat(fd).st_size  # of a file: what it had, as standard output has, and whole lines
        self.exit_code = 0

    def write(self, event: Event) -> None:
        """Write a line, masked; do nothing once that has failed."""
        line = json.dumps(encode(masked_record(event, known_secrets.values()))) + "\n"  # ASCII
        with self._lock:
            if self._fd is None:
                return
            try:
                rest = line.encode("ascii")
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                self._whole = os.fstat(self._fd).st_size
            except OSError as error:
                with suppress(OSError):  # a file; a pipe has nothing to take back
                    os.ftruncate(self._fd, self._whole)
                self._fd = None
                self.lost_reader = isinstance(error, BrokenPipeError)
                print(f"ci-tasks: no more events: {error.strerror}; the run continues", file=sys.stderr, flush=True)


@contextmanager
def open_events(target: str | None) -> Iterator[EventStream | None]:
    """The stream of `--events`, None without that option. Raises UsageError for a file that cannot be written."""
    if target is None:
        yield None
        return
    fd = _open(target)
    stream = EventStream(fd)
    error_text = ""
    try:
        yield stream
    except BaseException as error:
        stream.exit_code, error_text = _exit_code(error), str(error)
        raise
    finally:
        stream.write(CommandEnded(now(), stream.exit_code, error_text))
        os.close(fd)
    if stream.lost_reader:  # as of any output whose reader has gone
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _open(target: str) -> int:
    if target == STDOUT:
        return os.dup(1)
    try:
        return os.open(os.path.expanduser(target), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"--events: cannot write {target}: {error.strerror}") from None


def _exit_code(error: BaseException) -> int:
    if isinstance(error, CiTasksError):
        return error.exit_code
    return EXIT_CANCELLED if isinstance(error, KeyboardInterrupt) else EXIT_BUG


def now() -> str:
    return _iso(datetime.now(timezone.utc))


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


class EventView:
    """A view that writes an event for what has changed, and shows people what `view` does."""

    def __init__(self, view: ProgressView, events: EventStream) -> None:
        self._view, self._events = view, events
        self._rows: dict[str, tuple[str, str, int, bool]] = {}  # state, host, attempt, and whether it had a note
        self._runs: dict[str, RunDir] = {}
        self._steps: dict[str, tuple[int, int]] = {}  # by run directory: size of events.jsonl, and steps written
        self._up: dict[str, bool] = {}

    def print_message(self, text: str) -> None:
        self._events.write(Message(now(), text))
        self._view.print_message(text)

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        for host in hosts:
            self._write_host(host)
        for progress in rows:
            self._write_row(progress)
        self._view.update(rows, hosts, left)

    def close(self) -> None:
        self._view.close()

    def _write_host(self, host: HostProgress) -> None:
        was_up = self._up.get(host.name)
        if was_up == host.up or (was_up is None and host.up and host.gpus is None):  # it is still being reached
            return
        self._up[host.name] = host.up
        self._events.write(HostChanged(now(), "host_up" if host.up else "host_down", host.name, host.note))

    def _write_row(self, progress: RowProgress) -> None:
        if progress.log:
            self._runs[progress.row] = RunDir(os.path.dirname(progress.log))
        has_ended = progress.state not in _STATE_EVENTS
        has_note = bool(progress.note) and progress.state != RUNNING  # its last line, which changes all the time
        stands = (progress.state, progress.host, progress.attempt, has_note)
        if not has_ended and self._rows.get(progress.row) == stands:
            self._write_steps(progress.row)
            return
        if self._rows.get(progress.row) == stands:
            return
        if has_ended:
            self._write_steps(progress.row)
        self._rows[progress.row] = stands
        run = self._runs.get(progress.row)
        self._events.write(
            RowChanged(
                time=now(),
                event=_STATE_EVENTS.get(progress.state, "row_ended"),
                row=progress.row,
                host=progress.host,
                attempt=progress.attempt,
                note=progress.note if has_note else "",
                status=progress.state if has_ended else None,
                seconds=None if progress.seconds is None else round(progress.seconds, 3),
                directory=run.path if run else "",
            )
        )

    def _write_steps(self, row: str) -> None:
        """The steps that have begun since the last call, as the run's own events say."""
        run = self._runs.get(row)
        if run is None:
            return
        size, count = self._steps.get(run.path, (0, 0))
        try:
            grown = os.stat(run.events).st_size
        except OSError:
            return
        if grown == size:
            return
        steps = [event for event in events_of(run) if event.event == "step"]
        for step in steps[count:]:
            self._events.write(RowStep(_iso(datetime.fromtimestamp(step.t, timezone.utc)), row, step.name or ""))
        self._steps[run.path] = grown, len(steps)
