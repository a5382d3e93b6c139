"""Whatever becomes of the database, no run notices, and questions are answered from the run directories."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import history, index
from ci_tasks.results.history import RunQuery
from ci_tasks.results.load import load_record
from ci_tasks.results.runs import record_not_started

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
        run = make(number=number, status="planned")
        assert record_not_started(run, "blocked", "no GPU") == load_record(run)
    output = capsys.readouterr().err
    assert (output.count("\n"), message in output) == (1, True), output

    assert _rows() == ["row-3", "row-2", "row-1"]
    assert _rows() == ["row-3", "row-2", "row-1"]
    assert history.durations("ckpt") == {}
    assert message in (output := capsys.readouterr().err)
    assert output.count("every run directory is read") == 1
    assert (home / "history.db").stat() == before, "it was left as it is"
    if holder is not None:
        holder.close()
        assert _rows() == ["row-3", "row-2", "row-1"], "what could not be written then is found now"
        assert history.durations("ckpt") == {"row-1": 10.0}


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


def test_after_a_fault_a_process_does_not_try_again_for_every_run(
    make: Make, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def refuse(work: object) -> None:
        tried.append(work)
        raise index.HistoryUnavailable("no")

    monkeypatch.setattr(index, "with_connection", refuse)
    for number in (1, 2):
        record_not_started(make(number=number, status="planned"), "blocked", "no GPU")
    assert len(tried) == 1


def test_a_python_without_sqlite_runs_all_the_same(make: Make, home: Path) -> None:
    run = make(status="planned")
    code = "import sys; sys.modules['_sqlite3'] = None\nfrom ci_tasks.results.runs import record_not_started\n"
    code += "from ci_tasks.agent.run_directory import RunDir\n"
    code += "print(record_not_started(RunDir(sys.argv[1]), 'blocked', 'x').status)"
    done = subprocess.run([sys.executable, "-c", code, run.path], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("blocked\n", "")


def test_runs_of_several_processes_that_end_at_once_are_all_kept(make: Make, home: Path) -> None:
    """Each makes the database where there is none yet, at the same time as the others."""
    code = "import sys\nfrom ci_tasks.results.runs import record_not_started\n"
    code += "from ci_tasks.agent.run_directory import RunDir\n"
    code += "sys.stdin.readline()\nfor path in sys.argv[1:]: record_not_started(RunDir(path), 'blocked', 'x')"
    batches = [
        [make(f"2026010{at}-120000-ckpt", number, status="planned") for number in range(1, 11)] for at in (1, 2, 3)
    ]
    there = [
        subprocess.Popen(
            [sys.executable, "-c", code, *(run.path for run in batch)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for batch in batches
    ]
    for process in there:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in there] == ["", "", ""]
    kept = index.with_connection(
        lambda connection: connection.execute("SELECT count(*) FROM runs WHERE final").fetchone()
    )
    assert kept == (30,)
