"""What the history knows of a row at commits up to the good end: how often it fails there by chance."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.checkout.commits import commits_up_to
from ci_tasks.features.failures.bisection.observations import BEFORE_GOOD, FAIL, PASS, Observation
from ci_tasks.features.failures.bisection.run_commits import signature_of
from ci_tasks.records import FAILED, PASSED, RunRecord
from ci_tasks.results.history import RunQuery, search

_COMMITS, _RUNS = 5000, 500  # the newest ones


def earlier_runs(source: Path, good: str, label: str, row: str, exclude: frozenset[str]) -> tuple[Observation, ...]:
    """Runs of `row` on clean trees of `good` and of what is older, on any host. `exclude` are ids of runs that are
    counted otherwise."""
    records = search(RunQuery(label=label, row=(row,), status=(PASSED, FAILED), limit=_RUNS))
    known = [record for record in records if record.row == row and record.id not in exclude and _commit(record)]
    if not known:
        return ()
    commits = commits_up_to(source, good, _COMMITS)
    return tuple(_observation(record, good) for record in known if _commit(record) in commits)


def _commit(record: RunRecord) -> str:
    """The commit that ran, "" where it was not run as it is."""
    return record.checkout.commit if record.checkout and not record.checkout.dirty else ""


def _observation(record: RunRecord, good: str) -> Observation:
    position = 0 if _commit(record) == good else BEFORE_GOOD
    if record.status == PASSED:
        return Observation(position, PASS, run=record.id)
    failure_kind = record.triage.kind if record.triage else ""
    return Observation(position, FAIL, signature_of(record), run=record.id, failure_kind=failure_kind)
