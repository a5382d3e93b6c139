"""Which run is meant where a command is for one row and a name means several: the only one that did not pass, say."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import UsageError
from ci_tasks.records import BLOCKED, FAILED, LOST, RUNNING, VACUOUS, RunRecord
from ci_tasks.results import store
from ci_tasks.results.read_record import load_record

_MOST_LISTED = 12


@dataclass(frozen=True)
class Wanted:
    """What the one row must be: one of `statuses`, in words `what`."""

    statuses: tuple[str, ...]
    what: str


NOT_PASSED = Wanted((FAILED, VACUOUS, BLOCKED, LOST), "did not pass")
RUNS = Wanted((RUNNING,), "runs")


def find_one(name: str, wanted: Wanted = NOT_PASSED) -> tuple[str, RunDir]:
    """The one run that `name` means; where it was chosen among several, a line on standard error says so.

    Raises UnknownName, and UsageError where none can be chosen.
    """
    runs = store.find(name)
    if len(runs) == 1:
        return runs[0]
    records = [(id, load_record(run)) for id, run in runs]
    chosen = choose(name, records, wanted)
    row = next(record.row for id, record in records if id == chosen)
    print(f"{chosen}: {row}, the only one of {len(runs)} rows that {wanted.what}", file=sys.stderr, flush=True)
    return next((id, run) for id, run in runs if id == chosen)


def choose(name: str, records: Sequence[tuple[str, RunRecord]], wanted: Wanted = NOT_PASSED) -> str:
    """The id of the only run that is `wanted`. Raises UsageError, whose hint lists those that may be meant."""
    candidates = [(id, record) for id, record in records if record.status in wanted.statuses]
    if len(candidates) == 1:
        return candidates[0][0]
    listed = candidates or records
    lines = [f"  {id}  {record.status}  {record.row}" for id, record in listed[:_MOST_LISTED]]
    more = [f"  and {len(listed) - _MOST_LISTED} more: `ci-tasks runs`"] if len(listed) > _MOST_LISTED else []
    raise UsageError(f"{name!r} has {len(records)} rows; pick one", hint="\n".join([*lines, *more]))
