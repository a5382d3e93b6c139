"""Bands in a file that a team commits and reviews, and who accepted which numbers, and why.

What was accepted without a file is kept in HOME/accepted-numbers.json, and counts for every run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ci_tasks.agent.codec import RecordError, from_json, to_json
from ci_tasks.agent.files import replace_file
from ci_tasks.checkout.git import user_setting
from ci_tasks.errors import UsageError
from ci_tasks.features.numbers.result import Acceptance, BandsFile, RowNumbers
from ci_tasks.results import store
from ci_tasks.run.output_file import write_file


def own_file() -> Path:
    return store.home() / "accepted-numbers.json"


def acceptances(label: str, row: str, kind: str, file: BandsFile = BandsFile()) -> list[Acceptance]:
    """Of one row on one kind of host, those of `file` and our own, by time. Raises UsageError."""
    every = {*file.accepted, *read_bands(own_file(), must_exist=False).accepted}
    own = [each for each in every if (each.label, each.row, each.kind) == (label, row, kind)]
    return sorted(own, key=lambda each: each.at)


def read_bands(path: Path, *, must_exist: bool = True) -> BandsFile:
    """Raises UsageError."""
    if not must_exist and not path.exists():
        return BandsFile()
    try:
        return from_json(BandsFile, path.read_bytes(), where=str(path))
    except (OSError, RecordError) as error:
        hint = "`ci-tasks numbers LABEL --export FILE` writes one"
        raise UsageError(f"{path} holds no bands: {error}", hint=hint) from None


def write_bands(path: Path, rows: Sequence[RowNumbers], file: BandsFile) -> int:
    """The bands that the rows have now, what was accepted for them, and all else that the file had. Returns how many
    rows have a band."""
    new = [replace(row, marks=(), drifts=(), newest="", accepted=None, unseen=0) for row in rows if row.bands]
    keys = {(row.label, row.row, row.kind) for row in new}
    kept = [row for row in file.rows if (row.label, row.row, row.kind) not in keys]
    accepted = dict.fromkeys([*file.accepted, *(row.accepted for row in rows if row.accepted)])
    write_file(path, [_content(BandsFile((*kept, *new), tuple(accepted))).decode()])
    return len(new)


def accept(rows: Sequence[RowNumbers], run: str, why: str) -> Acceptance:
    """Keep the word of whoever asks, by git's `user.name`, that `run` is right. Raises UsageError without a reason, and
    where the run is not the newest of a row."""
    if not why.strip():
        raise UsageError("--accept needs --why TEXT", hint="it is kept for those who ask later why the numbers changed")
    named = [row for row in rows if run in (row.newest, store.batch_of(row.newest))]
    if len(named) != 1:
        newest = ", ".join(row.newest for row in named or rows)
        problem = f"has {len(named)} of them" if named else "is not the newest run of a row that passed"
        raise UsageError(f"{run} {problem}; one is accepted at a time", hint=f"the newest: {newest}")
    (row,) = named
    by = user_setting("user.name").strip() or "unknown"
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    accepted = Acceptance(row.label, row.row, row.kind, row.newest, by, at, why)
    own = read_bands(own_file(), must_exist=False)
    replace_file(str(own_file()), _content(replace(own, accepted=(*own.accepted, accepted))))
    return accepted


def _content(file: BandsFile) -> bytes:
    return (to_json(file, indent=1) + "\n").encode()
