"""Which run directory belongs to which row of a command, on disk at every moment: whoever resumes it reads this.

HOME/runs/BATCH/rows.jsonl   the request, then a line for each row that was begun: {row, number, host}
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ci_tasks.agent import processes
from ci_tasks.agent.codec import encode, from_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import read_json
from ci_tasks.errors import UsageError
from ci_tasks.results import store
from ci_tasks.results.batch_state import read_state_if_readable
from ci_tasks.results.store import Batch

NAME = "rows.jsonl"


@dataclass(frozen=True)
class JournalEntry:
    """One attempt at a row."""

    row: str
    number: int
    host: str


@dataclass(frozen=True)
class JournalHead:
    """What was asked for: the first line."""

    label: str
    hosts: str
    rows: tuple[str, ...]
    tree: str
    checkout: str


@dataclass(frozen=True)
class BatchJournal:
    """A command's rows, and its attempts in the order in which they began."""

    batch: Batch
    label: str
    hosts: str
    rows: tuple[str, ...]
    tree: str
    checkout: str
    entries: tuple[JournalEntry, ...]

    def last_entry(self, row: str) -> JournalEntry | None:
        return next((entry for entry in reversed(self.entries) if entry.row == row), None)

    @property
    def next_number(self) -> int:
        return max([len(self.rows), *(entry.number for entry in self.entries)]) + 1


def start_journal(batch: Batch, label: str, hosts: str, rows: Sequence[str], checkout: Checkout) -> None:
    """Begin the journal of a command."""
    _append(batch, JournalHead(label, hosts, tuple(rows), checkout.tree, checkout.path))


def append_entry(batch: Batch, begun: JournalEntry) -> None:
    _append(batch, begun)


def find_unfinished(label: str, checkout: str) -> BatchJournal:
    """The newest command of this label and checkout that has rows without an end. Raises UsageError where there is
    none."""
    runs = store.home() / "runs"
    for name in sorted(os.listdir(runs) if runs.is_dir() else [], reverse=True):
        journal = read(Batch(name, runs / name))
        if journal is None or journal.label != label or journal.checkout != checkout:
            continue
        if any(not _has_end(journal.batch, journal.last_entry(row)) for row in journal.rows):
            state = read_state_if_readable(journal.batch.path)
            if state is not None and state.is_active and state.owner != processes.identity():
                raise UsageError(
                    f"{name} still runs: process {state.pid} on {state.machine}",
                    hint=f"`ci-tasks attach {name}` follows it, `ci-tasks cancel {name}` ends it",
                )
            return journal
    raise UsageError(
        f"no command of label {label} on this checkout was left unfinished", hint="`ci-tasks runs` lists what ran"
    )


def read(batch: Batch) -> BatchJournal | None:
    """The journal of a batch; None where it has none. A last line that was cut short never was."""
    try:
        with open(batch.path / NAME, encoding="utf-8") as source:
            lines = [line for line in source if line.endswith("\n")]
        if not lines:
            return None
        head = from_json(JournalHead, lines[0], where=NAME)
        begun = tuple(from_json(JournalEntry, line, where=NAME) for line in lines[1:])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UsageError(f"{batch.path / NAME} is not a journal of rows: {error}", hint="run the label anew") from None
    return BatchJournal(batch, head.label, head.hosts, head.rows, head.tree, head.checkout, begun)


def _has_end(batch: Batch, begun: JournalEntry | None) -> bool:
    return begun is not None and bool(read_json(batch.run_dir(begun.number).record))


def _append(batch: Batch, line: JournalHead | JournalEntry) -> None:
    with open(batch.path / NAME, "a", encoding="utf-8") as out:
        out.write(json.dumps(encode(line), ensure_ascii=True) + "\n")
        out.flush()
        os.fsync(out.fileno())
