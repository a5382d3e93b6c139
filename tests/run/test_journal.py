"""What a command leaves on disk for whoever resumes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import write_json
from ci_tasks.errors import UsageError
from ci_tasks.results import store
from ci_tasks.results.store import Batch
from ci_tasks.run import journal
from ci_tasks.run.journal import BatchJournal, JournalEntry

CHECKOUT = Checkout(path="/home/anna/slime", commit="c" * 40, tree="t" * 40)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))
    return tmp_path


def begun(*attempts: JournalEntry, rows: tuple[str, ...] = ("one", "two"), label: str = "ckpt") -> Batch:
    batch = store.new_batch(label)
    journal.start_journal(batch, label, "a,b", rows, CHECKOUT)
    for attempt in attempts:
        journal.append_entry(batch, attempt)
    return batch


def end(batch: Batch, number: int) -> None:
    run = batch.run_dir(number)
    Path(run.path).mkdir(exist_ok=True)
    write_json(run.record, {"status": "passed"})


def read(batch: Batch) -> BatchJournal:
    entries = journal.read(batch)
    assert entries is not None
    return entries


def test_it_says_what_was_asked_for_and_what_was_begun() -> None:
    batch = begun(JournalEntry("one", 1, "a"), JournalEntry("one", 3, "b"))
    entries = read(batch)
    assert (entries.label, entries.hosts, entries.rows, entries.tree) == ("ckpt", "a,b", ("one", "two"), CHECKOUT.tree)
    assert entries.last_entry("one") == JournalEntry("one", 3, "b")
    assert entries.last_entry("two") is None


def test_numbers_go_on_after_the_rows_and_their_attempts() -> None:
    assert read(begun()).next_number == 3
    assert read(begun(JournalEntry("one", 7, "a"))).next_number == 8


def test_a_last_line_that_was_cut_short_never_was() -> None:
    batch = begun(JournalEntry("one", 1, "a"))
    with (batch.path / journal.NAME).open("a") as out:
        out.write('{"row": "two", "num')
    assert read(batch).entries == (JournalEntry("one", 1, "a"),)


def test_a_row_name_may_hold_anything() -> None:
    name = 'a\n"b"\udce4'
    assert read(begun(JournalEntry(name, 1, "a"), rows=(name,))).last_entry(name) == JournalEntry(name, 1, "a")


def test_a_batch_without_a_journal_has_none() -> None:
    assert journal.read(store.new_batch("ckpt")) is None


def test_the_newest_command_that_was_left_is_found() -> None:
    done = begun(JournalEntry("one", 1, "a"), JournalEntry("two", 2, "a"))
    end(done, 1)
    end(done, 2)
    left = begun(JournalEntry("one", 1, "a"))
    end(left, 1)
    begun(label="image")
    assert journal.find_unfinished("ckpt", CHECKOUT.path).batch.id == left.id


def test_an_attempt_without_an_end_is_unfinished() -> None:
    batch = begun(JournalEntry("one", 1, "a"), JournalEntry("two", 2, "a"), JournalEntry("one", 3, "b"))
    end(batch, 1)
    end(batch, 2)
    assert journal.find_unfinished("ckpt", CHECKOUT.path).batch.id == batch.id


@pytest.mark.parametrize(("label", "checkout"), [("image", CHECKOUT.path), ("ckpt", "/home/anna/other")])
def test_another_label_or_checkout_is_not_resumed(label: str, checkout: str) -> None:
    begun()
    with pytest.raises(UsageError, match=f"no command of label {label}"):
        journal.find_unfinished(label, checkout)
