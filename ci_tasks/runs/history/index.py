"""A record that was just written, on its way into the history. Whatever goes wrong here, the run does not notice."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.runs import store
from ci_tasks.runs.history import database
from ci_tasks.runs.history.entry import COLUMNS, Entry, entry, to_line
from ci_tasks.runs.waits import queued

_NUMBER = re.compile(r"[0-9]{2,9}")
_KEY = ("batch", "number")
# What is final stays so: it may have become final after somebody else had looked.
_WRITE = (
    f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _KEY)
    + " WHERE excluded.final >= runs.final"
)
_given_up: set[Path] = set()


def note(run: RunDir, record: Mapping[str, Any]) -> None:
    """Keep the record of a run that has ended, if the run is one of this home. Never raises: a fault is said once, and
    this process then leaves it to the next command that asks the history to find the run by itself."""
    place = located(run)
    if place is None or database.path() in _given_up:
        return
    try:
        one = read(*place, run, record)
        database.ask(lambda connection: _put_one(connection, one))
        database.stay(database.path())
    except Exception as problem:  # no fault of an index may fail a run, not even one that nobody has thought of
        _given_up.add(database.path())
        database.say(f"the history is not kept up to date, and catches up later: {problem}")


def located(run: RunDir) -> tuple[str, int] | None:
    """(batch, number) of a run of this home; None for one elsewhere, such as what `plan --out` writes."""
    top, batch, number = Path(run.path).parts[:-2], *Path(run.path).parts[-2:]
    if not is_number(number) or top != (store.home() / "runs").parts:
        return None
    return batch, int(number)


def is_number(name: str) -> bool:
    """Whether a directory's name is that of a row."""
    return bool(_NUMBER.fullmatch(name)) and f"{int(name):02d}" == name


def read(batch: str, number: int, run: RunDir, record: Mapping[str, Any], *, seen: int = 0) -> Entry:
    """The entry of a run, with what its directory says besides."""
    one = entry(batch, number, record, planned=store.planned_at(batch), simulated=_is_simulated(run), seen=seen)
    # Records of earlier versions do not say how long the run waited.
    return replace(one, queued=queued(run)) if one.final and one.queued is None else one


def put(connection: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    """To be called in a transaction."""
    connection.executemany(_WRITE, map(to_line, entries))


def _put_one(connection: sqlite3.Connection, one: Entry) -> None:
    with database.writing(connection):
        put(connection, [one])


def _is_simulated(run: RunDir) -> bool:
    try:
        wanted = read_json(run.plan).get("gpu_locks")
    except (OSError, ValueError):
        return False
    return isinstance(wanted, dict) and wanted.get("simulated") is not None
