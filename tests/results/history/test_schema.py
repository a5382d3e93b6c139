"""A history of another version is made again from the run directories."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import history, index
from ci_tasks.results.history import RunQuery

Make = Callable[..., RunDir]


@pytest.mark.parametrize("version", [0, index.VERSION + 1, 1000])
def test_tables_of_another_version_are_made_again(version: int, make: Make, home: Path) -> None:
    make()
    with closing(sqlite3.connect(home / "history.db")) as connection:
        connection.execute("CREATE TABLE runs (other)")
        connection.execute(f"PRAGMA user_version = {version}")
    assert [record.row for record in history.search(RunQuery())] == ["row-1"]
    assert index.with_connection(lambda now: now.execute("PRAGMA user_version").fetchone()) == (index.VERSION,)


def test_of_two_processes_at_once_one_makes_the_tables(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as first,
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other,
    ):

        def overtake(statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":
                first.set_trace_callback(None)
                index._make_tables(other)

        first.set_trace_callback(overtake)
        index._make_tables(first)
        assert first.execute("PRAGMA user_version").fetchone() == (index.VERSION,)
