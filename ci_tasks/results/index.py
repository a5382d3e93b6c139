"""HOME/history.db: the index of all runs' records in SQLite.

The truth is each run's record.json. A database that is damaged or has other tables is made again, and one that cannot
be used fails no run. `history` asks it, and first brings it up to date.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ci_tasks.agent.codec import encode
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import Blocked, printable
from ci_tasks.records import PASSED, UNFINISHED, RunEnvironment, RunRecord, epoch_seconds
from ci_tasks.resources import make_home
from ci_tasks.results import store

try:
    import sqlite3
except ImportError as error:
    message = "this Python was built without SQLite, so there is no history of runs"
    hint = "rebuild it with SQLite's header files (Debian: libsqlite3-dev), or use the system's Python"
    raise Blocked(message, hint=hint) from error

VERSION = 6  # `PRAGMA user_version`; to be raised with every change of the tables
_TABLES = (
    """
    CREATE TABLE runs (
        batch TEXT NOT NULL,         -- the directory HOME/runs/BATCH/NUMBER
        number INTEGER NOT NULL,
        stamp TEXT NOT NULL,         -- the second in the batch's name, and when its first row was planned (ns): these
        planned INTEGER NOT NULL,    -- order runs as `store` does
        at REAL NOT NULL,            -- its start, or when it was planned where it never began (seconds, epoch)
        label TEXT NOT NULL,
        row TEXT NOT NULL,
        host TEXT,
        status TEXT NOT NULL,
        final INTEGER NOT NULL,      -- whether it has a record.json, and its command is over: it is not read again
        seconds REAL,
        queued REAL,
        checkout TEXT,
        commit_hash TEXT,
        tree TEXT,
        retry INTEGER NOT NULL,      -- whether it ran a part of its row: the last steps again, or only some tests
        seen INTEGER NOT NULL,       -- st_mtime_ns of its directory when it was looked at; 0: look again
        record_json TEXT NOT NULL,   -- its record, without what may be long
        PRIMARY KEY (batch, number)
    )
    """,
    # What the comparison with the run directories has seen. Of a batch that is not open every row is final.
    "CREATE TABLE batches (name TEXT PRIMARY KEY, open INTEGER NOT NULL, seen INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX runs_by_time ON runs (stamp, planned, batch, number)",
    "CREATE INDEX runs_by_label ON runs (label, stamp, planned, batch, number)",
    "CREATE INDEX runs_by_commit ON runs (commit_hash)",
)
NEWEST_FIRST = "ORDER BY stamp DESC, planned DESC, batch DESC, number DESC"
_STAMP = len("20260101-120000")
_NUMBER = re.compile(r"[0-9]{2,9}")
_MAX_REASON = 2000  # characters
_BUSY = 5.0  # seconds to wait for others who write
_DAMAGED = ("no such table", "no such column", "Could not decode")
Connection = sqlite3.Connection
_Answer = TypeVar("_Answer")
_warned: set[str] = set()


class HistoryUnavailable(Exception):
    """The database cannot be used; the message says why."""


# -- runs -------------------------------------------------------------------------------------------------------------


def entry(batch: str, number: int, run: RunDir, record: RunRecord, *, seen: int = 0) -> dict[str, Any]:
    """The line of a run, by columns."""
    planned, started = store.planned_at(batch), epoch_seconds(record.started_at)
    checkout, timings = record.checkout, record.timings
    return {
        "batch": batch, "number": number, "stamp": batch[:_STAMP], "planned": planned,
        "at": planned / 1e9 if started is None else started,
        "label": record.label, "row": record.row, "host": record.host, "status": record.status,
        "final": record.status not in UNFINISHED, "seconds": timings.seconds, "queued": timings.queued,
        "checkout": checkout.path if checkout else None, "commit_hash": checkout.commit if checkout else None,
        "tree": checkout.tree if checkout else None, "retry": record.is_partial, "seen": seen,
        "record_json": json.dumps(encode(_abridged(record, f"{batch}.{number:02d}"), compact=True)),
    }  # fmt: skip


def put(connection: Connection, entries: Sequence[dict[str, Any]]) -> None:
    """What is final stays so: it may have become final after another command had looked."""
    if not entries:
        return
    columns = list(entries[0])
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in ("batch", "number"))
    connection.executemany(
        f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)}) "
        f"ON CONFLICT DO UPDATE SET {changed} WHERE excluded.final >= runs.final",
        [{name: stored(value) for name, value in line.items()} for line in entries],
    )


def is_number(name: str) -> bool:
    return bool(_NUMBER.fullmatch(name)) and f"{int(name):02d}" == name


def _abridged(record: RunRecord, id: str) -> RunRecord:
    return replace(
        record,
        id=record.id or id,
        reason=record.reason[:_MAX_REASON],
        checkout=replace(record.checkout, dirty=()) if record.checkout else None,
        triage=replace(record.triage, context=(), frames=(), candidates=()) if record.triage else None,
        hang=replace(record.hang, groups=(), could_not=()) if record.hang else None,
        metrics={}, deviations=(), environment=RunEnvironment(), gpu_use=None,
        attempts=tuple(replace(attempt, reason=attempt.reason[:_MAX_REASON]) for attempt in record.attempts),
    )  # fmt: skip


def stored(value: Any) -> Any:
    """As a column takes it: a name that is no UTF-8 has lone surrogates, which the database would refuse."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def passed_runs(label: str, row: str, count: int) -> list[RunDir]:
    """The newest runs of the row that passed and have their logs, the newest first, as far as the history knows them
    already; none if it cannot be used."""
    condition = "label = ? AND row = ? AND status = ? AND NOT retry"
    query = f"SELECT batch, number FROM runs WHERE {condition} {NEWEST_FIRST} LIMIT ?"
    try:
        places = with_connection(lambda connection: lines(connection, query, label, row, PASSED, count))
    except HistoryUnavailable:
        return []
    return [run for run in (run_dir(*place) for place in places) if os.path.exists(run.log)]


def run_dir(batch: str, number: int) -> RunDir:
    return RunDir(str(store.home() / "runs" / batch / f"{number:02d}"))


# -- the database ------------------------------------------------------------------------------------------------------


def with_connection(work: Callable[[Connection], _Answer]) -> _Answer:
    """What `work` finds in the database, which is made if there is none. It is done a second time, on an empty
    database, if the first shows that this one is damaged. One that is locked, on a full disk or not ours to write is
    left alone. Raises HistoryUnavailable."""
    place = store.home() / "history.db"
    try:
        try:
            return _connected(place, work)
        except sqlite3.Error as error:
            # SQLite has no class of its own for damage; what is locked, full or not ours is an OperationalError.
            if type(error) is not sqlite3.DatabaseError and not str(error).startswith(_DAMAGED):
                raise
            _set_aside(place, str(error))
            return _connected(place, work)
    except (sqlite3.Error, OSError) as error:
        raise HistoryUnavailable(f"{place}: {error}") from error


def in_memory(work: Callable[[Connection], _Answer]) -> _Answer:
    """What `work` finds in an empty database of its own."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _make_tables(connection)
        return work(connection)


def _connected(place: Path, work: Callable[[Connection], _Answer]) -> _Answer:
    make_home()
    with contextlib.closing(sqlite3.connect(place, timeout=_BUSY, isolation_level=None)) as connection:
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            # Readers and a writer side by side. Of two processes that ask at once one is refused; it works without.
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last lines, which are found again; in return no line waits for the disk.
        connection.execute("PRAGMA synchronous = NORMAL")
        _make_tables(connection)
        return work(connection)


def _make_tables(connection: Connection) -> None:
    """If they are missing, or of another version. Raises sqlite3.Error."""
    if _version(connection) == VERSION:
        return
    with transaction(connection):
        if _version(connection) == VERSION:  # another process has done it meanwhile
            return
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            connection.execute(f'DROP TABLE "{name}"')
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


@contextlib.contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """All of the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _set_aside(place: Path, why: str) -> None:
    """Rename the damaged file: everything in it, except for removed runs, is in the run directories."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{place}{end}", f"{place}.damaged{end}")
    warn_once(f"{place} is damaged ({why}); renamed to {place.name}.damaged, and rebuilt from the run directories")


def warn_once(message: str) -> None:
    """Tell the person, once in the life of this process; never an error itself."""
    if message not in _warned:
        _warned.add(message)
        with contextlib.suppress(OSError, ValueError):
            print(f"ci-tasks: {printable(message)}", file=sys.stderr, flush=True)


def lines(connection: Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, tuple(map(stored, values))).fetchall()
