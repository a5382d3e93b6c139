"""HOME/history.db: how it is opened, and what is done where it cannot be.

It is an index of files that are there anyway. One that is damaged is set aside and begun anew; one that is locked, on a
full disk or not ours to write is left alone, and whoever asked is told.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ci_tasks.errors import printable
from ci_tasks.runs import store
from ci_tasks.runs.history.migrations import NewerSchema, migrate

NAME = "history.db"
BUSY = 5.0  # seconds to wait for others who write
_DAMAGED = ("no such table", "no such column", "Could not decode")
_BESIDE = ("", "-wal", "-shm")
_Result = TypeVar("_Result")
_said: set[str] = set()
_kept: dict[Path, sqlite3.Connection] = {}


class Fault(Exception):
    """The database cannot be used; the message says why."""


def path() -> Path:
    return store.home() / NAME


def ask(work: Callable[[sqlite3.Connection], _Result]) -> _Result:
    """What `work` finds in the database, which is made where there is none. Raises Fault.

    `work` is done a second time, on an empty database, where the first shows that this one is damaged.
    """
    place = path()
    identity = _identity(place)
    try:
        return _worked(place, work)
    except sqlite3.Error as error:
        if not _is_damaged(error):
            raise Fault(f"{place}: {error}") from error
        _set_aside(place, identity, str(error))
    except (OSError, NewerSchema) as error:
        raise Fault(f"{place}: {error}") from error
    try:
        return _worked(place, work)
    except (sqlite3.Error, OSError, NewerSchema) as error:
        raise Fault(f"{place}: {error}") from error


def in_memory() -> contextlib.closing[sqlite3.Connection]:
    """An empty database that nobody else sees."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
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


def stay(place: Path) -> None:
    """Keep the database open until this process ends: who closes it last waits until all is on the disk, which takes
    longer than a line does. Raises sqlite3.Error."""
    if place in _kept:
        return
    _let_go()
    connection = sqlite3.connect(place, timeout=BUSY, isolation_level=None, check_same_thread=False)
    _kept[place] = connection
    connection.execute("PRAGMA user_version").fetchone()  # until the first question nothing is open


@atexit.register
def _let_go() -> None:
    while _kept:
        with contextlib.suppress(sqlite3.Error):
            _kept.popitem()[1].close()


def say(message: str) -> None:
    """Tell the person, once in the life of this process; never an error itself."""
    if message not in _said:
        _said.add(message)
        with contextlib.suppress(OSError, ValueError):
            print(f"ci-tasks: {printable(message)}", file=sys.stderr, flush=True)


def _worked(place: Path, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(place, timeout=BUSY, isolation_level=None)) as connection:
        _begin_log(connection)
        migrate(connection)
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
    """Rename the damaged file, unless another process was faster. Raises Fault."""
    try:
        with open(place.with_name(f"{NAME}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _identity(place) != damaged:
                return
            for end in _BESIDE:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{place}{end}", f"{place}.damaged{end}")
    except OSError as error:
        raise Fault(f"{place} is damaged ({why}), and cannot be set aside: {error.strerror}") from error
    say(f"{place} is damaged ({why}); it is now {NAME}.damaged, and made again from the run directories")
