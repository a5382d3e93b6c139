"""Which run directory belongs to which row of a command, on disk at every moment: whoever resumes it reads this.

HOME/runs/BATCH/rows.jsonl   the request, then a line for each row that was begun: {row, number, host}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci_tasks.errors import UsageError
from ci_tasks.model import Checkout
from ci_tasks.runner.layout import read_json
from ci_tasks.runs import store
from ci_tasks.runs.store import Batch

NAME = "rows.jsonl"


@dataclass(frozen=True)
class Begun:
    """One attempt at a row."""

    row: str
    number: int
    host: str


@dataclass(frozen=True)
class Journal:
    """A command's rows, and its attempts in the order in which they began."""

    batch: Batch
    label: str
    hosts: str
    rows: tuple[str, ...]
    tree: str
    checkout: str
    begun: tuple[Begun, ...]

    def last(self, row: str) -> Begun | None:
        return next((one for one in reversed(self.begun) if one.row == row), None)

    @property
    def next_number(self) -> int:
        return max([len(self.rows), *(one.number for one in self.begun)]) + 1


def write(batch: Batch, label: str, hosts: str, rows: Sequence[str], checkout: Checkout) -> None:
    """Begin the journal of a command."""
    head = {"label": label, "hosts": hosts, "rows": list(rows), "tree": checkout.tree, "checkout": checkout.path}
    _append(batch, head)


def note(batch: Batch, begun: Begun) -> None:
    _append(batch, {"row": begun.row, "number": begun.number, "host": begun.host})


def unfinished(label: str, checkout: str) -> Journal:
    """The newest command of this label and checkout that has rows without an end. Raises UsageError where there is
    none."""
    runs = store.home() / "runs"
    for name in sorted(os.listdir(runs) if runs.is_dir() else [], reverse=True):
        journal = read(Batch(name, runs / name))
        if journal is None or journal.label != label or journal.checkout != checkout:
            continue
        if any(not _has_end(journal.batch, journal.last(row)) for row in journal.rows):
            return journal
    raise UsageError(
        f"no command of label {label} on this checkout was left unfinished", hint="`ci-tasks runs` lists what ran"
    )


def read(batch: Batch) -> Journal | None:
    """The journal of a batch; None where it has none. A last line that was cut short never was."""
    try:
        with open(batch.path / NAME, encoding="utf-8") as source:
            lines = [json.loads(line) for line in source if line.endswith("\n")]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise UsageError(f"{batch.path / NAME} is not a journal of rows", hint="run the label anew") from None
    if not lines:
        return None
    head, *begun = lines
    return Journal(
        batch=batch,
        label=head["label"],
        hosts=head["hosts"],
        rows=tuple(head["rows"]),
        tree=head["tree"],
        checkout=head["checkout"],
        begun=tuple(Begun(one["row"], one["number"], one["host"]) for one in begun),
    )


def _has_end(batch: Batch, begun: Begun | None) -> bool:
    return begun is not None and bool(read_json(batch.run_dir(begun.number).record))


def _append(batch: Batch, line: Mapping[str, Any]) -> None:
    with open(batch.path / NAME, "a", encoding="utf-8") as out:
        out.write(json.dumps(line, ensure_ascii=True) + "\n")
        out.flush()
        os.fsync(out.fileno())
