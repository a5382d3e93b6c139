"""The last runs of a row that passed, by their directories: what is normal in its log."""

from __future__ import annotations

import os
import sqlite3

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.records import PASSED
from ci_tasks.results import store
from ci_tasks.results.history import database
from ci_tasks.results.history.run_row import stored


def passed_runs(label: str, row: str, count: int) -> list[RunDir]:
    """Newest first, as far as the history knows them and their logs are there. Never raises for a history that cannot
    be used: then none are known."""
    try:
        places = database.with_connection(lambda connection: _places(connection, label, row, count))
    except database.HistoryUnavailable:
        return []
    runs = [RunDir(str(store.home() / "runs" / batch / f"{number:02d}")) for batch, number in places]
    return [run for run in runs if os.path.exists(run.log)]


def _places(connection: sqlite3.Connection, label: str, row: str, count: int) -> list[tuple[str, int]]:
    return connection.execute(
        "SELECT batch, number FROM runs WHERE label = ? AND row = ? AND status = ? AND NOT retry "
        "ORDER BY stamp DESC, number DESC LIMIT ?",
        (stored(label), stored(row), PASSED, count),
    ).fetchall()
