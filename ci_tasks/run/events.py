"""What happens while rows run: one stream of events, and who reads it.

    view = EventView(open_view(...), journal, events)

A view is told how rows and hosts stand. What has changed becomes events, and these have three readers: the terminal
(`progress` prints them, or draws how all stands), the file of `--events`, and the journal of the command, by which
`--resume` finds the runs that exist: HOME/runs/BATCH/events.jsonl. The last line of `--events` is `command_ended`. A
reader that goes away and a full disk end the events, not the run. Texts (`note`, `text`, `step`) may quote what a job
or a host wrote, and all is masked.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Literal

from ci_tasks import safe_output
from ci_tasks.agent import processes
from ci_tasks.agent.codec import encode, from_json, masked_record
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import EXIT_BUG, EXIT_CANCELLED, UsageError
from ci_tasks.records import CANCELLED
from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostProgress, RowProgress
from ci_tasks.results import store
from ci_tasks.results.load import read_run_record
from ci_tasks.results.runs import events_of
from ci_tasks.results.store import Batch, read_state_if_readable

STDOUT = "-"
JOURNAL = "events.jsonl"
RowEvent = Literal["row_waiting", "row_placed", "row_started", "row_stalled", "row_ended"]
_STATE_EVENTS: dict[str, RowEvent] = {WAITING: "row_waiting", RUNNING: "row_started", STALLED: "row_stalled"}


@dataclass(frozen=True)
class RunPrepared:
    """Rows are planned and about to start. `directory` has their run directories; `checkout` is what they test. `asked`
    is equal for commands with the same workflow, image, overrides and values."""

    time: str
    id: str
    label: str
    host: str
    rows: tuple[str, ...]
    commit: str
    tree: str
    directory: str
    event: Literal["run_prepared"] = "run_prepared"
    checkout: str = ""
    asked: str = ""


@dataclass(frozen=True)
class RowChanged:
    """A row waits, is given to a host, runs there, writes nothing, or has ended with a status, which only the end has.
    `note` says what it waits for, or why it ended so; `directory` is its run's, "" before it has one."""

    time: str
    event: RowEvent
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
    """A host can be used, or cannot; `note` says why: its link, its Python, its install steps. `gpus` are its GPUs,
    as far as they are known."""

    time: str
    event: Literal["host_up", "host_down"]
    host: str
    note: str = ""
    gpus: int | None = None


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


# -- what has changed --------------------------------------------------------------------------------------------------


class ProgressView:
    """What a person sees of rows: what happens, and how each row stands, and each host of several."""

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            print(event.text, flush=True)

    def update(self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = ()) -> None:
        pass

    def close(self) -> None:
        pass


class EventView:
    """Finds out what has changed since rows and hosts were shown last, tells it all readers, and `view` the whole."""

    def __init__(self, view: ProgressView, *readers: EventStream | None) -> None:
        self._view = view
        self._readers: Sequence[ProgressView | EventStream] = (view, *filter(None, readers))
        self._rows: dict[str, tuple[str, str, int, bool]] = {}  # state, host, attempt, and whether it had a note
        self._up: dict[str, bool] = {}
        self._steps: dict[str, tuple[int, int]] = {}  # by run directory: size of events.jsonl, and steps written

    def write(self, event: Event) -> None:
        for reader in self._readers:
            reader.write(event)

    def print_message(self, text: str) -> None:
        self.write(Message(now(), text))

    def update(self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = ()) -> None:
        for host in hosts:
            was_up = self._up.get(host.name)
            is_being_reached = was_up is None and host.up and host.gpus is None
            if was_up != host.up and not is_being_reached:
                self._up[host.name] = host.up
                self.write(HostChanged(now(), "host_up" if host.up else "host_down", host.name, host.note, host.gpus))
        for row in rows:
            if row.state not in _STATE_EVENTS:
                self._write_steps(row)  # before the end of the row
            self._write_change(row)
            self._write_steps(row)
        self._view.update(rows, hosts)

    def close(self) -> None:
        self._view.close()

    def _write_change(self, row: RowProgress) -> None:
        note = row.note if row.state != RUNNING else ""  # of one that runs it is its last line
        standing = (row.state, row.host, row.attempt, bool(note))
        if self._rows.get(row.row) == standing:
            return
        self._rows[row.row] = standing
        event = _STATE_EVENTS.get(row.state, "row_ended")
        seconds = None if row.seconds is None else round(row.seconds, 3)
        status, directory = row.state if event == "row_ended" else None, os.path.dirname(row.log)
        self.write(RowChanged(now(), event, row.row, row.host, row.attempt, note, status, seconds, directory))

    def _write_steps(self, row: RowProgress) -> None:
        """The steps of the job that have started since the last call, as the run's own events say."""
        if not row.log:
            return
        run = RunDir(os.path.dirname(row.log))
        size, count = self._steps.get(run.path, (0, 0))
        with suppress(OSError):
            if (grown := os.stat(run.events).st_size) != size:
                steps = [event for event in events_of(run) if event.event == "step"]
                for step in steps[count:]:
                    self.write(RowStep(_iso(datetime.fromtimestamp(step.t, timezone.utc)), row.row, step.name or ""))
                self._steps[run.path] = grown, len(steps)


def now() -> str:
    return _iso(datetime.now(timezone.utc))


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


# -- the file of --events, and the journal of a command ----------------------------------------------------------------


class EventStream:
    """Writes events to a file descriptor, from any thread. The command sets `exit_code` before its end."""

    def __init__(self, fd: int, lost: str = "no more events", durable: Collection[str] = ()) -> None:
        self._fd, self._lost, self._durable = fd, lost, durable
        self._lock, self._is_open = threading.Lock(), True
        self.exit_code = 0

    def write(self, event: Event) -> None:
        """Write a line, masked; do nothing once that has failed, and leave no part of the line in a file. A `durable`
        event is on disk then."""
        rest = json.dumps(encode(masked_record(event, safe_output.secret_values()))).encode("ascii") + b"\n"
        with self._lock:
            size = os.fstat(self._fd).st_size
            try:
                while rest and self._is_open:
                    rest = rest[os.write(self._fd, rest) :]
                if self._is_open and event.event in self._durable:
                    os.fsync(self._fd)
            except OSError as error:
                self._is_open = False
                with suppress(OSError):  # a pipe has nothing to take back
                    os.ftruncate(self._fd, size)
                print(f"ci-tasks: {self._lost}: {error.strerror}; the run continues", file=sys.stderr, flush=True)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def open_events(target: str | None) -> Iterator[EventStream | None]:
    """The stream of `--events`, None without that option. Raises UsageError for a file that cannot be written."""
    if target is None:
        yield None
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.dup(1) if target == STDOUT else os.open(os.path.expanduser(target), flags, 0o644)
    except OSError as error:
        raise UsageError(f"--events: cannot write {target}: {error.strerror}") from None
    stream, error_text = EventStream(fd), ""
    try:
        yield stream
    except BaseException as error:
        code = EXIT_CANCELLED if isinstance(error, KeyboardInterrupt) else EXIT_BUG
        stream.exit_code, error_text = getattr(error, "exit_code", code), str(error)
        raise
    finally:
        stream.write(CommandEnded(now(), stream.exit_code, error_text))
        stream.close()


def open_journal(batch: Batch) -> EventStream:
    """The events of a batch. What `--resume` needs is on disk before a row starts."""
    fd = os.open(batch.path / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    return EventStream(fd, "--resume will not find all rows", durable=("run_prepared", "row_placed"))


@dataclass(frozen=True)
class BatchJournal:
    """A command's rows, and its attempts in the order in which they were given to hosts. `is_over`: it has ended, and
    was not cancelled."""

    batch: Batch
    asked: RunPrepared
    placed: tuple[RowChanged, ...]
    is_over: bool = False

    def attempts(self, row: str) -> list[tuple[str, RunDir]]:
        """On which hosts the row was, with its run directories. What never left this machine was started again under
        the same number."""
        hosts = {int(os.path.basename(event.directory)): event.host for event in self.placed if event.row == row}
        return [(host, self.batch.run_dir(number)) for number, host in hosts.items()]


def resumable(label: str, checkout: str, only: str | None, rows: Sequence[str] = ()) -> BatchJournal | None:
    """The newest command of this label and checkout that has rows without an end, and none but those that `only`
    selects. Raises UsageError if there is none. With `rows` it has just these, and there may be none."""
    parts = [part.strip() for part in (only or "").split(",")]
    for name in sorted(store.batches(), reverse=True):
        journal = read_journal(Batch(name, store.home() / "runs" / name))
        if journal is None or (journal.asked.label, journal.asked.checkout) != (label, checkout):
            continue
        asked = journal.asked.rows
        is_meant = {*rows} == {*asked} if rows else all(any(part in row for part in parts) for row in asked)
        if journal.is_over or not is_meant:
            continue
        latest = [journal.attempts(row)[-1:] for row in journal.asked.rows]
        records = [read_run_record(run) for attempts in latest for _, run in attempts]
        if len(records) < len(latest) or not all(record and record.status != CANCELLED for record in records):
            state = read_state_if_readable(journal.batch.path)
            if state is not None and state.is_active and state.owner != processes.identity():
                message = f"{name} still runs: process {state.pid} on {state.machine}"
                raise UsageError(message, hint=f"`ci-tasks attach {name}` follows it, `ci-tasks cancel {name}` ends it")
            return journal
    if rows:
        return None
    which = f" with rows of --only {only} alone" if only else ""
    message = f"no command of label {label}{which} on this checkout is unfinished"
    raise UsageError(message, hint="`ci-tasks runs` lists what ran")


def read_journal(batch: Batch) -> BatchJournal | None:
    """The journal of a batch; None if it has none. A last line that was cut short never was."""
    path = batch.path / JOURNAL
    try:
        with open(path, encoding="utf-8") as source:
            lines = [line for line in source if line.endswith("\n")]
        asked = [from_json(RunPrepared, line, where=JOURNAL) for line in lines if '"event": "run_prepared"' in line]
        placed = [from_json(RowChanged, line, where=JOURNAL) for line in lines if '"event": "row_placed"' in line]
        ends = [from_json(RunEnded, line, where=JOURNAL) for line in lines if '"event": "run_ended"' in line]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UsageError(f"{path} is not an event log: {error}", hint="run the label again") from None
    is_over = bool(ends) and ends[-1].status != CANCELLED
    return BatchJournal(batch, asked[0], tuple(placed), is_over) if asked else None
