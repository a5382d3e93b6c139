"""A history of another version is made again from the run directories."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results.history import database, schema
from ci_tasks.results.history import queries as history
from ci_tasks.results.history.run_row import RunQuery

Make = Callable[..., RunDir]


@pytest.mark.parametrize("version", [0, schema.VERSION + 1, 1000])
def test_tables_of_another_version_are_made_again(version: int, make: Make, home: Path) -> None:
    make()
    with closing(sqlite3.connect(home / "history.db")) as connection:
        connection.execute("CREATE TABLE runs (other)")
        connection.execute(f"PRAGMA user_version = {version}")
    assert [record.row for record in history.search(RunQuery())] == ["row-1"]
    assert database.with_connection(lambda now: now.execute("PRAGMA user_version").fetchone()) == (schema.VERSION,)


def test_of_two_processes_at_once_one_makes_the_tables(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as first,
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other,
    ):

        def overtake(statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":
                first.set_trace_callback(None)
                schema.prepare(other)

        first.set_trace_callback(overtake)
        schema.prepare(first)
        assert first.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
