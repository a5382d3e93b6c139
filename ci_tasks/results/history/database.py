"""HOME/history.db: how it is opened, and what is done where it cannot be.

It is an index of files that are there anyway. One that is damaged is set aside and begun anew; one that is locked, on a
full disk or not ours to write is left alone, and whoever asked is told.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ci_tasks.agent.files import LockTimeout, file_lock
from ci_tasks.errors import printable
from ci_tasks.resources import make_home
from ci_tasks.results import store
from ci_tasks.results.history import schema

NAME = "history.db"
BUSY = 5.0  # seconds to wait for others who write
_DAMAGED = ("no such table", "no such column", "Could not decode")
_BESIDE = ("", "-wal", "-shm")
_Result = TypeVar("_Result")
_warned: set[str] = set()


class HistoryUnavailable(Exception):
    """The database cannot be used; the message says why."""


def path() -> Path:
    return store.home() / NAME


def with_connection(work: Callable[[sqlite3.Connection], _Result]) -> _Result:
    """What `work` finds in the database, which is made where there is none. Raises HistoryUnavailable.

    `work` is done a second time, on an empty database, where the first shows that this one is damaged.
    """
    place = path()
    identity = _identity(place)
    try:
        return _call(place, work)
    except sqlite3.Error as error:
        if not _is_damaged(error):
            raise HistoryUnavailable(f"{place}: {error}") from error
        _set_aside(place, identity, str(error))
    except OSError as error:
        raise HistoryUnavailable(f"{place}: {error}") from error
    try:
        return _call(place, work)
    except (sqlite3.Error, OSError) as error:
        raise HistoryUnavailable(f"{place}: {error}") from error


def in_memory() -> contextlib.closing[sqlite3.Connection]:
    """An empty database that nobody else sees."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.prepare(connection)
    return contextlib.closing(connection)


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction: all of the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def warn_once(message: str) -> None:
    """Tell the person, once in the life of this process; never an error itself."""
    if message not in _warned:
        _warned.add(message)
        with contextlib.suppress(OSError, ValueError):
            print(f"ci-tasks: {printable(message)}", file=sys.stderr, flush=True)


def _call(place: Path, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
    make_home()
    with contextlib.closing(sqlite3.connect(place, timeout=BUSY, isolation_level=None)) as connection:
        _begin_log(connection)
        schema.prepare(connection)
        return work(connection)


def _begin_log(connection: sqlite3.Connection) -> None:
    """Readers and a writer side by side. Of two processes that ask for it at once one is refused; it works without."""
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
    # A power cut may cost the last lines, which are found again; in return no line waits for the disk.
    connection.execute("PRAGMA synchronous = NORMAL")


def _is_damaged(error: sqlite3.Error) -> bool:
    """SQLite has no class of its own for these; what is locked, full or not ours is an OperationalError."""
    return type(error) is sqlite3.DatabaseError or str(error).startswith(_DAMAGED)


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(place)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _set_aside(place: Path, damaged: tuple[int, int] | None, why: str) -> None:
    """Rename the damaged file, unless another process was faster. Raises HistoryUnavailable."""
    try:
        with file_lock(str(place.with_name(f"{NAME}.lock")), exclusive=True, timeout=BUSY):
            if _identity(place) != damaged:
                return
            for end in _BESIDE:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{place}{end}", f"{place}.damaged{end}")
    except (OSError, LockTimeout) as error:
        what = "another process holds its lock" if isinstance(error, LockTimeout) else error.strerror
        raise HistoryUnavailable(f"{place} is damaged ({why}), and cannot be set aside: {what}") from error
    warn_once(f"{place} is damaged ({why}); it is now {NAME}.damaged, and made again from the run directories")
