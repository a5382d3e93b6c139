"""Where runs are kept, what they are called, and how a person's short name finds one.

HOME/runs/BATCH/NN/     one row's run directory; its id is BATCH.NN
HOME/runs/BATCH/state.json  how far the command of the batch is, and which process that is
HOME/environments/      packages of install steps, see ci_tasks.agent.environments
HOME/history.db         an index of all runs' records, made again where it is missing
HOME/logs/              what `ci_tasks.debug_log` writes, a file a process
HOME/simulated-gpus/    the lock files of simulated GPUs
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from ci_tasks.agent import processes
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_if_readable, write_record
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.resources import HOME_ENV as HOME_ENV
from ci_tasks.resources import home as home
from ci_tasks.resources import make_home

_STAMP = "%Y%m%d-%H%M%S"
_LONGEST_SLUG = 80  # a file name has 255 bytes
_ID = re.compile(r"(?P<batch>.+)\.(?P<number>\d+)")
Phase = Literal["preparing", "installing", "running", "ended"]
_STATE = "state.json"
_BELIEVED = 24 * 3600.0  # seconds
_DOING = {
    "preparing": "before its rows were prepared",
    "installing": "during the install steps",
    "running": "before the row started",
}


class BatchHasNoRows(UsageError):
    """A command that has yet to find its rows, or that was killed before."""

    def __init__(self, batch: str, state: BatchState) -> None:
        if state.is_active:
            super().__init__(f"{batch} is being prepared", hint=f"`ci-tasks attach {batch}` waits for its rows")
        else:
            why = "none started, or `clean` removed them" if state.phase == "ended" else state.why_not_started
            super().__init__(f"{batch} has no rows: {why}", hint="`ci-tasks clean` removes its leftovers")
        self.batch, self.state = batch, state


@dataclass(frozen=True)
class Batch:
    id: str
    path: Path

    @property
    def environments(self) -> Path:
        """Where a plan keeps its venvs: beside its rows, so that it can be run by hand whatever others do meanwhile."""
        return self.path / "environments"

    def run_dir(self, number: int) -> RunDir:
        return RunDir(str(self.path / f"{number:02d}"))

    def run_id(self, number: int) -> str:
        return f"{self.id}.{number:02d}"


def environments() -> Path:
    return home() / "environments"


def lock_dir() -> Path:
    """The lock files of simulated GPUs: shared by all simulated runs, so that they compete as real ones do."""
    return home() / "simulated-gpus"


def client_id() -> str:
    """Six letters that tell this home's runs on a shared host from another's."""
    path = home() / "client-id"
    if not path.exists():
        beside = make_home() / f"client-id.{os.getpid()}.{threading.get_ident()}"
        beside.write_text(os.urandom(3).hex(), encoding="ascii")
        with suppress(FileExistsError):
            os.link(beside, path)  # of two commands at once, the first decides
        beside.unlink()
    return path.read_text(encoding="ascii").strip()


def new_batch(label: str, directory: Path | None = None) -> Batch:
    """A fresh directory for the rows of one command; two commands in one second get two."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", label)[:_LONGEST_SLUG].strip("-.") or "run"
    stamp = time.strftime(_STAMP, time.gmtime())  # UTC: the newest is the last in every time zone
    if directory is not None:
        directory = directory.expanduser().resolve()
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{directory} is not a directory", hint="choose a new directory with --out")
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty", hint="choose a new directory with --out")
        directory.mkdir(parents=True, exist_ok=True)
        return Batch(f"{stamp}-{slug}", directory)
    try:
        runs = make_home() / "runs"
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        message = f"{home()} cannot be the directory for runs: {error.strerror}"
        raise UsageError(message, hint=f"{HOME_ENV} sets it (default: ~/.local/state/ci-tasks)") from None
    for attempt in range(1, 1000):
        id = f"{stamp}-{slug}" + (f"-{attempt}" if attempt > 1 else "")
        path = runs / id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return Batch(id, path)
    raise UsageError(f"{runs} has 1,000 runs of this second")


def started_at(name: str) -> float:
    """When the command of a batch, or of a run, began: seconds since 1970, by its name. Raises ValueError."""
    return datetime.strptime(_stamp(name), _STAMP).replace(tzinfo=timezone.utc).timestamp()


def run_dirs() -> Iterator[tuple[str, RunDir]]:
    """(id, directory) of every run kept here, newest first. What is not asked for is not looked at."""
    for batch in _newest_first(batches()):
        yield from rows_of(batch)


def batches() -> list[str]:
    return directories(home() / "runs")


def directories(path: Path) -> list[str]:
    """The names of the directories in `path`; another command may remove it at any moment."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []


def planned_at(batch: str) -> int:
    """When the first row of a batch was planned, in nanoseconds since 1970; 0 if that is not known."""
    with suppress(OSError):
        return os.stat(home() / "runs" / batch / "01" / "plan.json").st_mtime_ns
    return 0


def find(name: str) -> list[tuple[str, RunDir]]:
    """The runs that `name` means: an id, a batch, the beginning of either, or `last` for the newest command
    that runs, or that has a row which started; if there is none, the newest batch of all. BATCH.1 and `last.1` are
    row 1.

    Raises UnknownName if there is none, and BatchHasNoRows for a batch whose rows are not known yet.
    """
    batch, _, number = name.rpartition(".") if is_row(name) else (name, "", "")
    if batch == "last" and (newest := _newest_rows()):
        matches = _row_by_number(newest, number) if number else newest
    else:
        near = (each for each in batches() if f"{each}.".startswith(name) or name.startswith(f"{each}."))
        runs = [run for each in _newest_first(near) for run in rows_of(each)] if name else []
        matches = [(id, run) for id, run in runs if name in (id, batch_of(id))]
        matches = matches or (_row_by_number([each for each in runs if batch_of(each[0]) == batch], number))
        matches = matches or [(id, run) for id, run in runs if id.startswith(name)]
    if not matches:
        for unprepared in _newest_first(each for each in batches() if name and each.startswith(name)):
            if state := read_state_if_readable(home() / "runs" / unprepared):
                raise BatchHasNoRows(unprepared, state)
        rows = [id for id, _ in rows_of(batch)] if number and Path(name).name == name else []
        valid = rows or [id for id, _ in itertools.islice(run_dirs(), 10)]
        raise UnknownName("run", name, valid, where=str(home() / "runs"))
    return list(reversed(matches))


def _row_by_number(runs: list[tuple[str, RunDir]], number: str) -> list[tuple[str, RunDir]]:
    """Row 1, and not the rows whose numbers begin so."""
    return [(id, run) for id, run in runs if number and int(id.rpartition(".")[2]) == int(number)]


def _newest_rows() -> list[tuple[str, RunDir]]:
    """The rows that `last` means: for a command with several batches, such as a comparison, all rows. Raises
    BatchHasNoRows."""
    found, fallback, command = list[tuple[str, RunDir]](), list[tuple[str, RunDir]](), None
    for batch in _newest_first(batches()):
        rows, state = list(rows_of(batch)), read_state_if_readable(home() / "runs" / batch)
        if found and (state is None or state.owner != command):
            break
        if state is not None and state.is_active and not rows:
            raise BatchHasNoRows(batch, state)
        if (state is not None and state.is_active) or has_begun(batch):
            found, command = found + rows, state.owner if state else None
        fallback = fallback or rows
    return found or fallback


def has_begun(batch: str) -> bool:
    """Whether a row of it may have started, or has its end on record: not if it was only planned, or if its command was
    killed before."""
    return any(os.path.exists(file) for _, run in rows_of(batch) for file in (run.record, run.status, run.remote))


def rows_of(batch: str) -> Iterator[tuple[str, RunDir]]:
    """The ids of its rows with their run directories, the last one first."""
    path = home() / "runs" / batch
    numbers = [name for name in directories(path) if name.isascii() and name.isdecimal()]
    for number in sorted(numbers, key=int, reverse=True):
        yield f"{batch}.{number}", RunDir(str(path / number))


def setup_dirs(batch: str) -> list[RunDir]:
    path = home() / "runs" / batch / "environments"
    found = [RunDir(str(path / name)) for name in sorted(directories(path))]
    return [run for run in found if os.path.exists(run.plan)]


def is_row(id: str) -> bool:
    return _ID.fullmatch(id) is not None


def batch_of(id: str) -> str:
    matched = _ID.fullmatch(id)
    return matched["batch"] if matched else id


def _newest_first(names: Iterable[str]) -> Iterator[str]:
    """By the second in the name, and within it by when the first row was planned."""
    by_second = itertools.groupby(sorted(names, key=_stamp, reverse=True), key=_stamp)
    for _, together in by_second:
        yield from sorted(together, key=lambda name: (planned_at(name), name), reverse=True)


def _stamp(batch: str) -> str:
    return batch[: len("20260101-120000")]


# -- how far the command of a batch is: a process that was killed writes nothing, which the next command notices
# next, from its pid, its start and the boot. A batch without the file was only planned.


@dataclass(frozen=True)
class BatchState:
    """`preparing`: the code, the hosts and the plans; `installing`: the install steps that its rows share; `running`:
    rows start and run, and a row that has not started waits; `ended`: the command is over, or has left its rows to
    themselves. `machine`, `pid`, `pid_start` and `boot_id` tell the command's process, its owner, from any other."""

    phase: Phase
    pid: int
    pid_start: str | None
    boot_id: str | None
    machine: str
    written_at: float

    @property
    def owner(self) -> processes.Identity:
        return processes.Identity(self.pid, self.pid_start, self.boot_id)

    @property
    def is_here(self) -> bool:
        """Whether its process is one of this machine: a home may be shared with others."""
        return self.machine == os.uname().nodename

    @property
    def is_active(self) -> bool:
        """Whether the command still works on its rows. One on another machine is believed for a day."""
        if self.phase == "ended":
            return False
        return processes.alive(self.owner) if self.is_here else time.time() < self.written_at + _BELIEVED

    @property
    def was_killed(self) -> bool:
        return self.phase != "ended" and not self.is_active

    @property
    def why_not_started(self) -> str:
        """Why a row of it has not started, when it is not active."""
        if self.phase == "ended":
            return "the command ended before the row started"
        restarted = self.boot_id not in (None, processes.boot_id())
        return f"{'the machine restarted' if restarted else 'the client was killed'} {_DOING[self.phase]}"


def write_phase(batch: str | Path, phase: Phase) -> None:
    """Put the phase of this process's command on record. A batch that is gone by now needs none; nor does the end if
    the disk is full: it is found out. Raises OSError."""
    me = processes.identity()
    state = BatchState(phase, me.pid, me.pid_start, me.boot_id, os.uname().nodename, time.time())
    with suppress(*((OSError,) if phase == "ended" else (FileNotFoundError,))):
        write_record(os.path.join(batch, _STATE), state)


def read_state_if_readable(batch: str | Path) -> BatchState | None:
    """None for a batch that was only planned, or whose file cannot be read."""
    return read_if_readable(BatchState, os.path.join(batch, _STATE))
