"""Makes the history say what the run directories say, without a look at each of them.

Looked at are batches that it does not know yet, those of which a row has no record, and new ones that have changed.
What it knows as final stays, also when the files are removed. An empty history is thereby made from all run
directories.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ci_tasks.runner.layout import RunDir
from ci_tasks.runs import store
from ci_tasks.runs.history import database, index
from ci_tasks.runs.history.entry import PLANNED, Entry, restored, stored
from ci_tasks.runs.record import load

_AT_ONCE = 500  # entries of one transaction
_NEWEST = 100  # batches whose directory is compared with what was seen, for rows that were added later
_RACY = 2 * 10**9  # ns; a directory that changed so lately may change again without its time doing so
_LISTED = "listed"
_MOMENT = 1.0  # seconds after which a person is told what is going on
_AGAIN = 5.0  # seconds after which a terminal is told once more
# What a record may raise that somebody has changed, or that another version wrote.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def catch_up(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error, OSError."""
    runs = store.home() / "runs"
    before = _listing_of(runs)
    look = dict.fromkeys(_left_open(connection))
    look.update(dict.fromkeys(_changed(connection, runs)))
    if before is None or before != _noted(connection):
        look.update(dict.fromkeys(_unknown(connection)))
    if look:
        _take_all(connection, [runs / name for name in look])
    if before is not None and before != _noted(connection):
        with database.writing(connection):
            connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (_LISTED, before))


@dataclass
class _Found:
    """What a look at some batches gave, until it is written."""

    entries: list[Entry] = field(default_factory=list)
    gone: list[tuple[str | bytes, int]] = field(default_factory=list)
    batches: list[tuple[str | bytes, bool, int]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def write(self, connection: sqlite3.Connection) -> None:
        with database.writing(connection):
            index.put(connection, self.entries)
            connection.executemany("DELETE FROM runs WHERE batch = ? AND number = ? AND NOT final", self.gone)
            connection.executemany("INSERT OR REPLACE INTO batches (name, open, seen) VALUES (?, ?, ?)", self.batches)


@dataclass
class _Progress:
    total: int
    tell: Callable[[str], None]
    begun: float = field(default_factory=time.monotonic)
    told: float = 0.0

    def at(self, done: int) -> None:
        now = time.monotonic()
        if now < (self.told + _AGAIN if self.told else self.begun + _MOMENT):
            return
        if not self.told or sys.stderr.isatty():
            self.tell(f"reading run directories into the history: {done:,} of {self.total:,} batches")
        self.told = now

    def end(self) -> None:
        if self.told:
            self.tell(f"reading run directories into the history: done in {time.monotonic() - self.begun:.0f} s")


def _take_all(connection: sqlite3.Connection, batches: list[Path]) -> None:
    progress, found = _Progress(len(batches), database.say), _Found()
    for done, batch in enumerate(batches, 1):
        _look(connection, batch, found)
        if len(found.entries) >= _AT_ONCE or done == len(batches):
            found.write(connection)
            found = _Found(unreadable=found.unreadable)
        progress.at(done)
    progress.end()
    if found.unreadable:
        count = len(found.unreadable)
        database.say(f"{count} run{'s'[: count > 1]} cannot be read, such as {found.unreadable[0]}")


def _look(connection: sqlite3.Connection, batch: Path, found: _Found) -> None:
    name, seen = batch.name, _time_of(batch)
    known = {
        number: (bool(final), status, at)
        for number, final, status, at in connection.execute(
            "SELECT number, final, status, seen FROM runs WHERE batch = ?", (stored(name),)
        )
    }
    there = dict(_rows(batch))
    still_open = not there and seen is not None  # nothing is in it yet
    for number, run in there.items():
        final, status, at = known.get(number, (False, "", 0))
        if final:
            continue
        changed = _time_of(Path(run.path))
        if status == PLANNED and at and at == changed:
            still_open = True
            continue
        try:
            one = index.read(name, number, run, load(run), seen=changed or 0)
        except UNREADABLE as problem:
            found.unreadable.append(f"{run.path}: {problem!r}")
            still_open = True
            continue
        found.entries.append(one)
        still_open = still_open or not one.final
    found.gone += [(stored(name), number) for number, (final, *_) in known.items() if not final and number not in there]
    found.batches.append((stored(name), still_open, seen or 0))


def _rows(batch: Path) -> Iterator[tuple[int, RunDir]]:
    for name in store.directories(batch):
        if index.is_number(name):
            yield int(name), RunDir(str(batch / name))


def _left_open(connection: sqlite3.Connection) -> list[str]:
    return [restored(name) for (name,) in connection.execute("SELECT name FROM batches WHERE open")]


def _changed(connection: sqlite3.Connection, runs: Path) -> Iterator[str]:
    newest = connection.execute("SELECT name, seen FROM batches ORDER BY name DESC LIMIT ?", (_NEWEST,)).fetchall()
    for name, seen in newest:
        now = _time_of(runs / restored(name))
        if now is not None and (now != seen or not now):
            yield restored(name)


def _unknown(connection: sqlite3.Connection) -> Iterator[str]:
    known = {restored(name) for (name,) in connection.execute("SELECT name FROM batches")}
    return (name for name in store.batches() if name not in known)


def _listing_of(runs: Path) -> str | None:
    """What stays the same as long as no batch comes or goes; None where that cannot be told."""
    try:
        status = os.stat(runs)
    except OSError:
        return None
    return f"{status.st_ino} {status.st_mtime_ns}" if _is_settled(status.st_mtime_ns) else None


def _noted(connection: sqlite3.Connection) -> str | None:
    found = connection.execute("SELECT value FROM notes WHERE name = ?", (_LISTED,)).fetchone()
    return found[0] if found else None


def _time_of(directory: Path) -> int | None:
    """When a directory changed, in nanoseconds; 0 where that is too fresh to be relied on, None where there is none."""
    try:
        changed = os.stat(directory).st_mtime_ns
    except OSError:
        return None
    return changed if _is_settled(changed) else 0


def _is_settled(changed: int) -> bool:
    return changed < time.time_ns() - _RACY
