"""Whatever becomes of the database, no run notices, and questions are answered from the run directories."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import history, index
from ci_tasks.results.history import RunQuery

Make = Callable[..., RunDir]


def _rows() -> list[str]:
    return [record.row for record in history.search(RunQuery())]


def _scribble(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def _lacks_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE runs")


def _is_no_text(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET record_json = CAST(X'ff' AS TEXT)")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no database": lambda path: path.write_bytes(b"not a database, " * 1000),
    "a page overwritten": lambda path: _scribble(path, 4096, os.urandom(path.stat().st_size - 4096)),
    "cut off": lambda path: os.truncate(path, 5000),
    "without a table": _lacks_a_table,
    "text that is none": _is_no_text,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_database_is_set_aside_and_made_again(
    damage: Callable[[Path], object], make: Make, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(number=1)
    make(number=2)
    assert _rows() == ["row-2", "row-1"]
    damage(home / "history.db")
    assert _rows() == ["row-2", "row-1"]
    assert capsys.readouterr().err.count("is damaged") == 1
    assert (home / "history.db.damaged").exists()
    assert _rows() == ["row-2", "row-1"]
    assert capsys.readouterr().err == ""


def _locked(path: Path) -> sqlite3.Connection:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    return holder


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _full(path: Path) -> None:
    """As on a full disk: the file can be read, and nothing more be written."""
    path.unlink()
    path.symlink_to("/dev/full")


FAULTS: dict[str, tuple[Callable[[Path], sqlite3.Connection | None], str]] = {
    "locked": (_locked, "database is locked"),
    "a directory in its place": (_directory, "unable to open database file"),
    "on a device without room": (_full, "history.db: "),
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS)
def test_a_database_that_cannot_be_used_fails_nothing_and_is_said_once(
    fault: Callable[[Path], sqlite3.Connection | None],
    message: str,
    make: Make,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(index, "_BUSY", 0.05)
    make(number=1)
    assert _rows() == ["row-1"]
    holder = fault(home / "history.db")
    before = (home / "history.db").stat()

    for number in (2, 3):
        make(number=number, status="blocked")
    assert _rows() == ["row-3", "row-2", "row-1"]
    assert _rows() == ["row-3", "row-2", "row-1"]
    assert history.durations("ckpt") == {}, "an expectation is not worth that"
    assert message in (output := capsys.readouterr().err)
    assert output.count("every run directory is read") == 1
    assert (home / "history.db").stat() == before, "it was left as it is"
    if holder is not None:
        holder.close()
        assert _rows() == ["row-3", "row-2", "row-1"], "what could not be written then is found now"


def test_who_writes_for_long_keeps_nobody_from_reading(
    make: Make, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make()
    assert _rows() == ["row-1"]
    for directory in (run.path, os.path.dirname(run.path), home / "runs"):
        os.utime(directory, (1, 1))
    assert _rows() == ["row-1"]
    with closing(_locked(home / "history.db")):
        assert _rows() == ["row-1"]
    assert capsys.readouterr().err == ""


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
