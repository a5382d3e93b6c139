"""Makes the history say what the run directories say, without reading each of them.

Looked at are batches that it does not know yet, those of which a row has no record, and new ones that have changed.
What it knows as final stays, also when the files are removed. An empty history is thereby made from all run
directories.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.records import PLANNED
from ci_tasks.results import store
from ci_tasks.results.history import database, writer
from ci_tasks.results.history.run_row import RunRow, restored, stored
from ci_tasks.results.read_record import UnreadableRun, load_record

_TRANSACTION_ROWS = 500
_NEWEST = 100  # batches whose directory is compared with what was seen, for rows that were added later
_RACY = 2 * 10**9  # ns; a directory that changed so lately may change again without its time doing so
_REPORT_SECONDS = 1.0  # after which progress is reported
UNREADABLE = (OSError, UnreadableRun)


def sync_index(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error, OSError."""
    runs = store.home() / "runs"
    indexed = {
        restored(name): (bool(is_open), mtime)
        for name, is_open, mtime in connection.execute("SELECT name, open, seen FROM batches ORDER BY name")
    }
    newest = list(indexed)[-_NEWEST:]
    batches = dict.fromkeys(name for name, (is_open, _) in indexed.items() if is_open)
    batches.update(dict.fromkeys(name for name in newest if _has_changed(runs / name, indexed[name][1])))
    batches.update(dict.fromkeys(name for name in store.batches() if name not in indexed))
    if batches:
        _scan_all(connection, [runs / name for name in batches])


@dataclass
class _Scan:
    """What some batches hold, until it is written."""

    rows: list[RunRow] = field(default_factory=list)
    gone: list[tuple[str | bytes, int]] = field(default_factory=list)
    batches: list[tuple[str | bytes, bool, int]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def write(self, connection: sqlite3.Connection) -> None:
        with database.writing(connection):
            writer.put(connection, self.rows)
            connection.executemany("DELETE FROM runs WHERE batch = ? AND number = ? AND NOT final", self.gone)
            connection.executemany("INSERT OR REPLACE INTO batches (name, open, seen) VALUES (?, ?, ?)", self.batches)


def _scan_all(connection: sqlite3.Connection, batches: list[Path]) -> None:
    started, reported, scan = time.monotonic(), False, _Scan()
    for done, batch in enumerate(batches, 1):
        _scan_batch(connection, batch, scan)
        if len(scan.rows) >= _TRANSACTION_ROWS or done == len(batches):
            scan.write(connection)
            scan = _Scan(unreadable=scan.unreadable)
        if not reported and time.monotonic() > started + _REPORT_SECONDS:
            reported = True
            database.warn_once(f"reading run directories into the history: {done:,} of {len(batches):,} batches")
    if reported:
        database.warn_once(f"reading run directories into the history: done in {time.monotonic() - started:.0f} s")
    if scan.unreadable:
        count = len(scan.unreadable)
        database.warn_once(f"{count} run{'s'[: count > 1]} cannot be read, such as {scan.unreadable[0]}")


def _scan_batch(connection: sqlite3.Connection, batch: Path, scan: _Scan) -> None:
    name, mtime = batch.name, _time_of(batch)
    indexed = {
        number: (bool(final), status, at)
        for number, final, status, at in connection.execute(
            "SELECT number, final, status, seen FROM runs WHERE batch = ?", (stored(name),)
        )
    }
    there = dict(_rows(batch))
    still_open = not there and mtime is not None  # nothing is in it yet
    for number, run in there.items():
        final, status, at = indexed.get(number, (False, "", 0))
        if final:
            continue
        changed = _time_of(Path(run.path))
        if status == PLANNED and at and at == changed:
            still_open = True
            continue
        try:
            row = writer.row_of(name, number, run, load_record(run), seen=changed or 0)
        except UNREADABLE as problem:
            scan.unreadable.append(str(problem).splitlines()[0])
            still_open = True
            continue
        row = replace(row, final=row.final and os.path.exists(run.record))  # one that never began may be removed
        scan.rows.append(row)
        still_open = still_open or not row.final
    scan.gone += [
        (stored(name), number) for number, (final, *_) in indexed.items() if not final and number not in there
    ]
    scan.batches.append((stored(name), still_open, mtime or 0))


def _rows(batch: Path) -> Iterator[tuple[int, RunDir]]:
    for name in store.directories(batch):
        if writer.is_number(name):
            yield int(name), RunDir(str(batch / name))


def _has_changed(batch: Path, mtime: int) -> bool:
    now = _time_of(batch)
    return now is not None and (now != mtime or not now)


def _time_of(directory: Path) -> int | None:
    """When a directory changed, in nanoseconds; 0 where that is too fresh to be relied on, None where there is none."""
    try:
        changed = os.stat(directory).st_mtime_ns
    except OSError:
        return None
    return changed if changed < time.time_ns() - _RACY else 0
