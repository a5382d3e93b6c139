"""The record of a run, or what is known of a run without one; and which run is meant if a command is for one row."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.processes import conclude
from ci_tasks.agent.records import Deviation, RemoteLocation
from ci_tasks.agent.run_directory import RunDir, read_description, read_record, read_remote, read_status
from ci_tasks.errors import UsageError
from ci_tasks.records import BLOCKED, FAILED, LOST, NO_EVIDENCE, PLANNED, RUNNING, VACUOUS, WAITING, RunRecord, Verdict
from ci_tasks.results import store
from ci_tasks.results.runs import is_over, new_record
from ci_tasks.results.store import BatchState, read_state_if_readable

NOT_PASSED, RUNS = (FAILED, VACUOUS, BLOCKED, LOST), (RUNNING,)
_MOST_LISTED = 12


class UnreadableRun(UsageError):
    """A file of a run directory is not what it should be; the message names the file and the key."""


def read_run_record(run: RunDir) -> RunRecord | None:
    """The content of record.json; None if there is none. Raises UnreadableRun, OSError."""
    with _readable():
        return read_record(RunRecord, run.record)


def load_record(run: RunDir) -> RunRecord:
    """The record of a run, or what can be said of one without: it runs, it has yet to begin, or its client went away
    before. Raises UnreadableRun, OSError."""
    with _readable():
        batch = read_state_if_readable(os.path.dirname(run.path))
        if record := read_record(RunRecord, run.record):
            return record
        return _without_file(run, batch)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except RecordError as error:
        raise UnreadableRun(str(error), hint="a removed record.json is rebuilt from its run") from None


def find_one(name: str, statuses: tuple[str, ...] = NOT_PASSED) -> tuple[str, RunDir]:
    """The one run that `name` means; if it was chosen among several, a line on standard error says so. Raises
    UnknownName, and UsageError if none can be chosen."""
    runs = store.find(name)
    if len(runs) == 1:
        return runs[0]
    found = {id: load_record(run) for id, run in runs}
    chosen = choose(name, found, statuses)
    print(f"{chosen}: {found[chosen].row} {found[chosen].status}, of {len(runs)} runs", file=sys.stderr, flush=True)
    return chosen, dict(runs)[chosen]


def choose(name: str, records: Mapping[str, RunRecord], statuses: tuple[str, ...] = NOT_PASSED) -> str:
    """The id of the only run with such a status, or of the newest if all of them, or else all runs, are of one row.
    Raises UsageError, whose hint lists the runs that may be meant, for the COMMAND that ci_tasks.cli.program fills
    in."""
    candidates = {id: record for id, record in records.items() if record.status in statuses} or records
    if len({record.row for record in candidates.values()}) == 1:
        return list(candidates)[-1]
    lines = [f"  ci-tasks COMMAND {id}  {record.status}  {record.row}" for id, record in candidates.items()]
    more = [f"  and {len(lines) - _MOST_LISTED} more: `ci-tasks runs`"] if len(lines) > _MOST_LISTED else []
    raise UsageError(f"{name!r} has {len(records)} rows; pick one", hint="\n".join([*lines[:_MOST_LISTED], *more]))


def _without_file(run: RunDir, batch: BatchState | None) -> RunRecord:
    """What can be said of a run that has no record.json; of one that has ended, its record, which is written. `batch`
    is the state of its command as it was before record.json was looked for."""
    remote = read_remote(run)
    status = read_status(run) if remote else conclude(run)
    if status.exists and is_over(run):
        from ci_tasks.results.judge_run import judge_run  # commands that only look load none of it

        return judge_run(run)
    plan = read_description(run)
    if status.exists:
        return new_record(plan, status, Verdict(WAITING if status.phase == "waiting" else RUNNING, "", NO_EVIDENCE))
    return new_record(plan, status, _not_started(batch, remote))


def _not_started(batch: BatchState | None, remote: RemoteLocation | None) -> Verdict:
    """How a run stands that has neither a record nor, as far as is known here, an agent."""
    if batch is not None and batch.is_active:
        return Verdict(WAITING if batch.phase == "running" else batch.phase, "", NO_EVIDENCE)
    if remote is not None and not remote.complete:
        why = f"unknown here whether it started on {remote.host}: `ci-tasks attach` asks"
        return Verdict(WAITING, why, NO_EVIDENCE)
    if batch is None:
        return Verdict(PLANNED, "", NO_EVIDENCE)
    return Verdict(LOST, batch.why_not_started, NO_EVIDENCE)


def known_deviations(batches: Sequence[str], records: Sequence[RunRecord]) -> set[Deviation]:
    """What differed from CI in the label's last run before the first of these that was of a checkout of `records`."""
    first = min(batches, default="")
    labels = {name: re.sub(r"-\d$", "", name[len("20260101-120000") :]) for name in store.batches()}  # `-2` in a second
    earlier = [name for name, label in labels.items() if name < first and label == labels.get(first)]
    paths = {record.checkout and record.checkout.path for record in records}
    for name in sorted(earlier, reverse=True):
        runs = [run for _, run in store.rows_of(name)]
        known = load_record(runs[0]) if runs else None  # one record tells whose they are: there may be many runs
        if known is not None and (known.checkout and known.checkout.path) in paths:
            rows = map(load_record, runs)
            return {deviation for record in rows if record.started_at for deviation in record.deviations}
    return set()
