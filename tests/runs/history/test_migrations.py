"""A history of any earlier version becomes one of this version, whole or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ci_tasks.runs import history
from ci_tasks.runs.history import Filter, database
from ci_tasks.runs.history.migrations import MIGRATIONS, NewerSchema, migrate

DATA = Path(__file__).parent / "data"


def _schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """Tables, columns and indexes, without what the text of a statement may vary in."""
    found: list[tuple[str, ...]] = []
    for kind, name in connection.execute("SELECT type, name FROM sqlite_schema ORDER BY name").fetchall():
        columns = connection.execute(f"PRAGMA {'table' if kind == 'table' else 'index'}_info({name})").fetchall()
        found.append((kind, name, str(columns)))
    return found


@pytest.mark.parametrize("old", sorted(DATA.glob("schema-*.sql")), ids=lambda path: path.stem)
def test_an_old_history_gets_the_tables_of_a_new_one_and_keeps_its_runs(old: Path, home: Path) -> None:
    home.mkdir()
    with closing(sqlite3.connect(home / "history.db")) as connection:
        connection.executescript(old.read_text())
    (record,) = history.search(Filter())
    assert (record["row"], record["status"], record["triage"]) == ("an old row", "failed", {"cause": "assertion"})
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        migrate(new)
        assert database.ask(_schema) == _schema(new)


def test_a_step_that_fails_leaves_nothing_of_itself() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        before = _schema(connection)
        with pytest.raises(sqlite3.OperationalError, match="nonsense"):
            migrate(connection, (*MIGRATIONS, ("CREATE TABLE half (a)", "nonsense")))
        assert _schema(connection) == before
        migrate(connection, (*MIGRATIONS, ("CREATE TABLE whole (a)",)))
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


def test_of_two_processes_at_once_one_makes_each_step(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as one,
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other,
    ):

        def overtake(statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":
                one.set_trace_callback(None)
                migrate(other)

        one.set_trace_callback(overtake)
        migrate(one)
        assert one.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_what_a_newer_version_wrote_is_left_alone() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 1000")
        with pytest.raises(NewerSchema, match="1000"):
            migrate(connection)
        assert _schema(connection) == []
