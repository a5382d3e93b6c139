"""A record that was just written, on its way into the history. Whatever goes wrong here, the run does not notice."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from ci_tasks import debug_log
from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.records import RunRecord
from ci_tasks.results import store
from ci_tasks.results.history import database
from ci_tasks.results.history.run_row import RUN_COLUMNS, RunRow, run_row, to_line

_NUMBER = re.compile(r"[0-9]{2,9}")
_KEY = ("batch", "number")
# What is final stays so: it may have become final after somebody else had looked.
_WRITE_RUN = (
    f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({', '.join('?' * len(RUN_COLUMNS))}) ON CONFLICT DO UPDATE "
    "SET " + ", ".join(f"{name} = excluded.{name}" for name in RUN_COLUMNS if name not in _KEY) + " "
    "WHERE excluded.final >= runs.final"
)
_given_up: set[Path] = set()


def add_run(run: RunDir, record: RunRecord) -> None:
    """Keep the record of a run that has ended, if the run is one of this home. Never raises: a fault is said once, and
    this process then leaves it to the next command that asks the history to find the run by itself."""
    place = location_of(run)
    if place is None or database.path() in _given_up:
        return
    try:
        row = row_of(*place, run, record)
        database.with_connection(lambda connection: _write(connection, row))
    except Exception as problem:  # no fault of an index may fail a run, not even one that nobody has thought of
        if not isinstance(problem, database.HistoryUnavailable):
            debug_log.LOGGER.error("the history's entry of %s", run.path, exc_info=problem)
        _given_up.add(database.path())
        database.warn_once(f"the history is not kept up to date, and catches up later: {problem}")


def location_of(run: RunDir) -> tuple[str, int] | None:
    """(batch, number) of a run of this home; None for one elsewhere, such as what `plan --out` writes."""
    top, batch, number = Path(run.path).parts[:-2], *Path(run.path).parts[-2:]
    if not is_number(number) or top != (store.home() / "runs").parts:
        return None
    return batch, int(number)


def is_number(name: str) -> bool:
    return bool(_NUMBER.fullmatch(name)) and f"{int(name):02d}" == name


def row_of(batch: str, number: int, run: RunDir, record: RunRecord, *, seen: int = 0) -> RunRow:
    """The line of a run, with what its directory says besides."""
    planned = store.planned_at(batch)
    return run_row(batch, number, record, planned=planned, simulated=_is_simulated(run), seen=seen)


def put(connection: sqlite3.Connection, rows: Iterable[RunRow]) -> None:
    """To be called in a transaction."""
    connection.executemany(_WRITE_RUN, map(to_line, rows))


def _write(connection: sqlite3.Connection, row: RunRow) -> None:
    with database.writing(connection):
        put(connection, [row])


def _is_simulated(run: RunDir) -> bool:
    try:
        return read_plan(run).is_simulated
    except (OSError, RecordError):
        return False
