"""Runs that passed, by their directories: what is normal in the log of one that failed."""

from __future__ import annotations

import os
import sqlite3

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.records import PASSED
from ci_tasks.results import store
from ci_tasks.results.history import database
from ci_tasks.results.history.run_row import stored

_SAME_ROW = "label = ? AND row = ?"
_SAME_IMAGE = "instr(record_json, ?)"  # a digest stands in a record as nothing else
_SAME_HOST = "host = ?"


def passed_runs(label: str, row: str, count: int, *, image_digest: str = "", host: str = "") -> list[RunDir]:
    """The newest runs of the row; where none of it is known, of any row in the same image, which prints the same when
    it starts; else of any row on the same host. As far as the history knows them and their logs are there. Never raises
    for a history that cannot be used: then none are known."""
    kinds: list[tuple[str, tuple[str | bytes, ...]]] = [(_SAME_ROW, (stored(label), stored(row)))]
    kinds += [(_SAME_IMAGE, (stored(image_digest),))] if image_digest else []
    kinds += [(_SAME_HOST, (stored(host),))] if host else []
    for condition, values in kinds:
        if runs := _existing(condition, values, count):
            return runs
    return []


def runs_of_row(label: str, row: str, count: int) -> list[RunDir]:
    """The newest runs of the row alone that passed, the newest first."""
    return _existing(_SAME_ROW, (stored(label), stored(row)), count)


def _existing(condition: str, values: tuple[str | bytes, ...], count: int) -> list[RunDir]:
    try:
        places = database.with_connection(lambda connection: _places(connection, condition, values, count))
    except database.HistoryUnavailable:
        return []
    runs = [RunDir(str(store.home() / "runs" / batch / f"{number:02d}")) for batch, number in places]
    return [run for run in runs if os.path.exists(run.log)]


def _places(
    connection: sqlite3.Connection, condition: str, values: tuple[str | bytes, ...], count: int
) -> list[tuple[str, int]]:
    return connection.execute(
        f"SELECT batch, number FROM runs WHERE {condition} AND status = ? AND NOT retry "
        "ORDER BY stamp DESC, number DESC LIMIT ?",
        (*values, PASSED, count),
    ).fetchall()
