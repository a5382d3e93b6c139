"""A run as a line of the history's table: the columns that queries use, and its record; the query of runs."""

from __future__ import annotations

import json
from dataclasses import astuple, fields, replace
from typing import Any

from ci_tasks.agent.codec import encode, from_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import UNFINISHED, RunEnvironment, RunRecord, epoch_seconds

STAMP = len("20260101-120000")
_MAX_REASON = 2000  # characters


@dataclass(frozen=True)
class RunQuery:
    """Which runs are meant; what is empty leaves everything in. `row` are parts of names, of which one has to be in it;
    `commit` is the beginning of one; `since` and `until` are seconds since 1970, the second exclusive."""

    label: str = ""
    row: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    commit: str = ""
    since: float | None = None
    until: float | None = None
    limit: int | None = None

    def matches(self, run: RunRow) -> bool:
        return (
            (not self.label or run.label == self.label)
            and (not self.row or any(part in run.row for part in self.row))
            and (not self.status or run.status in self.status)
            and (not self.host or run.host in self.host)
            and (not self.commit or (run.commit_hash or "").startswith(self.commit))
            and (self.since is None or run.at >= self.since)
            and (self.until is None or run.at < self.until)
        )


@dataclass(frozen=True)
class RunRow:
    """A line of the table `runs`; schema.py says what the columns mean."""

    batch: str
    number: int
    stamp: str
    planned: int
    at: float
    label: str
    row: str
    host: str | None
    status: str
    final: bool
    seconds: float | None
    queued: float | None
    simulated: bool
    checkout: str | None
    commit_hash: str | None
    tree: str | None
    retry: bool
    seen: int
    record_json: str

    def record(self) -> RunRecord:
        return from_json(RunRecord, self.record_json, where="history")


RUN_COLUMNS = tuple(field.name for field in fields(RunRow))


def run_row(
    batch: str, number: int, record: RunRecord, *, planned: int = 0, simulated: bool = False, seen: int = 0
) -> RunRow:
    """`planned` is when the run's batch was, in nanoseconds since 1970."""
    started = epoch_seconds(record.started_at)
    checkout = record.checkout
    return RunRow(
        batch=batch,
        number=number,
        stamp=batch[:STAMP],
        planned=planned,
        at=planned / 1e9 if started is None else started,
        label=record.label,
        row=record.row,
        host=record.host,
        status=record.status,
        final=record.status not in UNFINISHED,
        seconds=record.timings.seconds,
        queued=record.timings.queued,
        simulated=simulated,
        checkout=checkout.path if checkout else None,
        commit_hash=checkout.commit if checkout else None,
        tree=checkout.tree if checkout else None,
        retry=bool(record.retry_of),
        seen=seen,
        record_json=json.dumps(encode(_abridged(record, f"{batch}.{number:02d}"), compact=True)),
    )


def _abridged(record: RunRecord, id: str) -> RunRecord:
    return replace(
        record,
        id=record.id or id,
        reason=record.reason[:_MAX_REASON],
        checkout=replace(record.checkout, dirty=()) if record.checkout else None,
        triage=replace(record.triage, context=(), frames=(), candidates=()) if record.triage else None,
        hang=replace(record.hang, groups=(), could_not=()) if record.hang else None,
        metrics={},
        deviations=(),
        environment=RunEnvironment(),
        gpu_use=None,
        attempts=tuple(replace(attempt, reason=attempt.reason[:_MAX_REASON]) for attempt in record.attempts),
    )


def stored(text: str) -> str | bytes:
    """`text` as a column takes it. A name that is no UTF-8 has lone surrogates, which the database would refuse."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def restored(value: Any) -> Any:
    """What was `stored`; any other value as it is."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def to_line(row: RunRow) -> tuple[Any, ...]:
    return tuple(stored(value) if isinstance(value, str) else value for value in astuple(row))


def from_line(line: tuple[Any, ...]) -> RunRow:
    return RunRow(*map(restored, line))
