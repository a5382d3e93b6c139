"""What is written of events: the file of `--events`, whole lines behind what it has; and the journal of a command."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ci_tasks import safe_output
from ci_tasks.errors import UsageError
from ci_tasks.results import store
from ci_tasks.results.store import Batch
from ci_tasks.run import events
from tests.parts.json_files import write_json

CHECKOUT = "/home/anna/slime"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))
    return tmp_path


def prepared(batch: Batch, rows: tuple[str, ...] = ("one", "two"), label: str = "ckpt") -> events.RunPrepared:
    return events.RunPrepared(
        "now", batch.id, label, "a,b", rows, "c" * 40, "t" * 40, str(batch.path), checkout=CHECKOUT
    )


def placed(batch: Batch, row: str, number: int, host: str = "a") -> events.RowChanged:
    return events.RowChanged("now", "row_placed", row, host, 1, directory=batch.run_dir(number).path)


def begun(*attempts: tuple[str, int, str], rows: tuple[str, ...] = ("one", "two"), label: str = "ckpt") -> Batch:
    batch = store.new_batch(label)
    events.open_journal(batch).write(prepared(batch, rows, label))
    for attempt in attempts:
        events.open_journal(batch).write(placed(batch, *attempt))
    return batch


def end(batch: Batch, *numbers: int) -> None:
    for number in numbers:
        run = batch.run_dir(number)
        Path(run.path).mkdir(exist_ok=True)
        write_json(run.record, {"id": "", "label": "", "row": "", "host": None, "status": "passed"})


def read(batch: Batch) -> events.BatchJournal:
    journal = events.read_journal(batch)
    assert journal is not None
    return journal


def test_the_journal_says_what_was_asked_for_and_which_runs_exist() -> None:
    never_left = ("one", 1, "a")
    journal = read(begun(never_left, ("one", 1, "a"), ("one", 3, "b")))
    assert (journal.asked.label, journal.asked.host, journal.asked.rows) == ("ckpt", "a,b", ("one", "two"))
    attempts = [(os.path.basename(run.path), host) for host, run in journal.attempts("one")]
    assert attempts == [("01", "a"), ("03", "b")]
    assert journal.attempts("two") == []


def test_a_last_line_that_was_cut_short_never_was() -> None:
    batch = begun(("one", 1, "a"))
    with (batch.path / events.JOURNAL).open("a") as out:
        out.write('{"event": "row_placed", "row": "two", "num')
    assert [attempt.row for attempt in read(batch).placed] == ["one"]


def test_a_row_name_may_hold_anything_but_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    name = 'a\n"b"\udce4, "event": "run_prepared"'
    assert [host for host, _ in read(begun((name, 1, "a"), rows=(name,))).attempts(name)] == ["a"]
    safe_output.add_secrets(["correct horse"])
    batch = begun()
    events.open_journal(batch).write(events.Message("now", "the token is correct horse"))
    assert "correct horse" not in (batch.path / events.JOURNAL).read_text()


def test_a_full_disk_ends_the_journal_and_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    batch = store.new_batch("ckpt")
    (batch.path / events.JOURNAL).symlink_to("/dev/full")
    journal = events.open_journal(batch)
    for _ in range(2):
        journal.write(placed(batch, "one", 1))
    assert capsys.readouterr().err.count("--resume will not find all rows") == 1


def test_a_line_that_a_full_disk_cuts_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that resumes this one appends to the journal, and reads it again."""
    batch = begun(("one", 1, "a"))
    journal, write = events.open_journal(batch), os.write
    room = [20, 0]

    def fill(fd: int, content: bytes) -> int:
        if size := room.pop(0):
            return write(fd, content[:size])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        journal.write(placed(batch, "two", 2))
    assert not room
    events.open_journal(batch).write(placed(batch, "two", 3))
    assert [attempt.directory[-2:] for attempt in read(batch).placed] == ["01", "03"]


def resumable(only: str | None = None, rows: tuple[str, ...] = ()) -> str:
    found = events.resumable("ckpt", CHECKOUT, only, rows)
    return found.batch.id if found else ""


def test_the_newest_command_that_was_left_is_found() -> None:
    begun()
    end(left := begun(("one", 1, "a")), 1)
    end(begun(("one", 1, "a"), ("two", 2, "a")), 1, 2)
    begun(label="image")
    assert resumable() == left.id


@pytest.mark.parametrize(("only", "found"), [(None, 0), ("two", 0), ("o, thr", 0), ("one", 1), ("on,tw", 0)])
def test_a_command_is_resumed_only_if_all_its_rows_are_selected(only: str | None, found: int) -> None:
    several, one = begun(rows=("two", "one")), begun(rows=("one",))
    store.new_batch("ckpt")  # prepared nothing
    newest = begun(rows=("two",))
    assert resumable(only) == (newest, one)[found].id
    assert resumable("one") != several.id
    assert resumable(None, ("one", "two")) == several.id
    assert resumable(None, ("one", "two", "three")) == ""


@pytest.mark.parametrize(("status", "goes_on"), [("blocked", False), ("failed", False), ("cancelled", True)])
def test_a_command_that_ended_by_itself_is_not_resumed(status: str, goes_on: bool) -> None:
    """Rows that were blocked before any host had them have no attempt."""
    older, batch = begun(rows=("two",)), begun()
    events.open_journal(batch).write(events.RunEnded("now", batch.id, status, 1))
    assert resumable() == (batch if goes_on else older).id


def test_an_attempt_without_an_end_is_unfinished() -> None:
    batch = begun(("one", 1, "a"), ("two", 2, "a"), ("one", 3, "b"))
    end(batch, 1, 2)
    assert resumable() == batch.id


@pytest.mark.parametrize(("label", "checkout"), [("image", CHECKOUT), ("ckpt", "/home/anna/other")])
def test_another_label_or_checkout_is_not_resumed(label: str, checkout: str) -> None:
    begun()
    with pytest.raises(UsageError, match=f"no command of label {label}"):
        events.resumable(label, checkout, None)
