"""What can be asked of the history. Every answer first takes in the runs that have ended since the last one.

A retry ran a part of its row's steps, in a workspace that was used before: only `search` counts it.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.records import FAILED, INSTALLING, PASSED, PLANNED, PREPARING, RowTally, RunRecord
from ci_tasks.results import store
from ci_tasks.results.history import database
from ci_tasks.results.history.run_row import (
    RUN_COLUMNS,
    RunQuery,
    RunRow,
    from_line,
    restored,
    run_row,
    stored,
)
from ci_tasks.results.history.sync_index import UNREADABLE, sync_index
from ci_tasks.results.read_record import load_record

_RECENT = 20  # of the passed runs of a row, how many say how long it takes
_NEWEST_FIRST = "ORDER BY stamp DESC, planned DESC, batch DESC, number DESC"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class RowDuration:
    """The median of what a row took where it passed, in seconds without its wait for GPUs, and of how many runs."""

    seconds: float
    samples: int


@dataclass(frozen=True)
class LastRun:
    """How a row of a batch ended the last time; `running` or `planned` where it has not."""

    row: str
    status: str
    batch: str
    id: str
    host: str


def search(query: RunQuery) -> list[RunRecord]:
    """The records of the runs that `query` admits, newest first; those that go on too. A run whose files were removed
    has what the history knows, and `files_gone`."""
    return _answer(lambda connection: list(_found(connection, query)))


def durations(label: str, hosts: Sequence[str] = ()) -> dict[str, float]:
    """Row → seconds that it may be expected to take; a row that has never passed is not in it. See `samples`."""
    return {row: duration.seconds for row, duration in samples(label, hosts).items()}


def samples(label: str, hosts: Sequence[str] = ()) -> dict[str, RowDuration]:
    """What rows took, by their newest runs on `hosts`; of a row that has none there, on all hosts with real GPUs. Runs
    on simulated GPUs count for hosts that are named, and where no host is. Empty where the database cannot be used: an
    expectation is not worth waiting for."""
    try:
        lines = database.with_connection(lambda connection: _passed(_synced(connection), label))
    except database.HistoryUnavailable as fault:
        database.warn_once(f"no expected durations: {fault}")
        return {}
    by_rank: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, host, simulated, seconds in lines:
        rank = 0 if host in hosts else 1 + bool(simulated)
        if row is not None and not (hosts and rank == 2) and len(by_rank[row][rank]) < _RECENT:
            by_rank[row][rank].append(seconds)
    best = {row: ranks[min(ranks)] for row, ranks in by_rank.items() if ranks}
    return {row: RowDuration(_median(taken), len(taken)) for row, taken in best.items()}


def silences(label: str) -> dict[str, float]:
    """Row → the most seconds for which the log of a run that passed did not grow, on any host. Empty where the database
    cannot be used."""
    query = "SELECT row, max(json_extract(record_json, '$.timings.silence')) FROM runs WHERE label = ? AND status = ?"
    lines = _lines_if_usable(f"{query} AND NOT retry GROUP BY row", stored(label), PASSED)
    return {restored(row): float(seconds) for row, seconds in lines if isinstance(seconds, (int, float))}


def _lines_if_usable(query: str, *values: Any) -> list[tuple[Any, ...]]:
    try:
        return database.with_connection(lambda connection: _synced(connection).execute(query, values).fetchall())
    except database.HistoryUnavailable:
        return []


def flakes(label: str = "", query: RunQuery = RunQuery()) -> list[RowTally]:
    """Every row and host of a label, or of all, by name; `query` says which runs count."""
    filters = replace(query, label=label or query.label, limit=None)
    lines = _answer(lambda connection: _tallied(connection, filters))
    by_row: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for line in lines:
        by_row[line[:3]].append(line[3:])
    tallies = [_tally([restored(name) or "" for name in names], entries) for names, entries in by_row.items()]
    return sorted(tallies, key=lambda tally: (tally.label, tally.row, tally.host))


def latest(label: str, checkout: str) -> list[LastRun]:
    """The newest batch of a label from the checkout at that path: how each row of it ended last, in the order of the
    rows. A batch that was only planned, or has yet to begin, is none. Empty where there is no such batch."""
    lines = _answer(lambda connection: _newest_batch(connection, label, checkout))
    last = {
        row: LastRun(row or "", status, batch, f"{batch}.{number:02d}", host or "")
        for row, status, batch, number, host in lines
    }
    return list(last.values())


def batches_without_rows() -> list[str]:
    """The batches that have no row yet, newest first."""
    query = "SELECT name FROM batches WHERE open AND name NOT IN (SELECT batch FROM runs) ORDER BY name DESC"
    return _names(query)


def labels() -> list[str]:
    return sorted(_names("SELECT DISTINCT label FROM runs WHERE label != ''"))


def hosts() -> list[str]:
    return sorted(_names("SELECT DISTINCT host FROM runs WHERE host != ''"))


def _names(query: str, *values: Any) -> list[str]:
    return [restored(name) for (name,) in _answer(lambda connection: connection.execute(query, values).fetchall())]


def _answer(question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
    """From the database; where that cannot be used, from the run directories by themselves."""
    try:
        return database.with_connection(lambda connection: question(_synced(connection)))
    except database.HistoryUnavailable as fault:
        database.warn_once(f"the history cannot be used, so every run directory is read: {fault}")
        with database.in_memory() as connection:
            return question(_synced(connection))


def _synced(connection: sqlite3.Connection) -> sqlite3.Connection:
    sync_index(connection)
    return connection


def _found(connection: sqlite3.Connection, query: RunQuery) -> Iterator[RunRecord]:
    where, values = _where(query)
    lines = connection.execute(f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE {where} {_NEWEST_FIRST}", values)
    left = query.limit
    for line in lines:
        if left is not None and left <= 0:
            return
        record = _truth(from_line(line), query)
        if record is not None:
            left = None if left is None else left - 1
            yield record


def _truth(indexed: RunRow, query: RunQuery) -> RunRecord | None:
    """The run's own record where it is there; None where that says otherwise than the history, and is not meant."""
    run = RunDir(str(store.home() / "runs" / indexed.batch / f"{indexed.number:02d}"))
    if not os.path.exists(run.plan):
        return replace(indexed.record(), files_gone=True)
    try:
        record = load_record(run)
    except UNREADABLE:
        return indexed.record()
    return record if query.matches(run_row(indexed.batch, indexed.number, record, planned=indexed.planned)) else None


def _passed(connection: sqlite3.Connection, label: str) -> list[tuple[Any, ...]]:
    lines = connection.execute(
        "SELECT row, host, simulated, max(seconds - coalesce(queued, 0), 0) FROM runs "
        f"WHERE label = ? AND status = ? AND seconds IS NOT NULL AND NOT retry {_NEWEST_FIRST}",
        (stored(label), PASSED),
    )
    return [tuple(map(restored, line)) for line in lines]


def _tallied(connection: sqlite3.Connection, query: RunQuery) -> list[tuple[Any, ...]]:
    where, values = _where(query)
    return connection.execute(
        "SELECT label, row, host, status, seconds, queued, coalesce(tree, commit_hash) FROM runs "
        f"WHERE final AND NOT retry AND {where} {_NEWEST_FIRST}",
        values,
    ).fetchall()


def _tally(names: Sequence[str], entries: list[tuple[Any, ...]]) -> RowTally:
    """`names` are label, row and host, `entries` status, seconds, seconds waited and tree of each run, newest first."""
    statuses_by_tree: dict[str, set[str]] = defaultdict(set)
    for status, _, _, tree in entries:
        if tree:
            statuses_by_tree[tree].add(status)
    passed = [line for line in entries if line[0] == PASSED][:_RECENT]
    return RowTally(
        label=names[0],
        row=names[1],
        host=names[2],
        counts=dict(Counter(status for status, *_ in entries)),
        seconds=_median_or_none([line[1] for line in passed if line[1] is not None]),
        queued=_median_or_none([line[2] for line in passed if line[2] is not None]),
        flaky=any({PASSED, FAILED} <= statuses for statuses in statuses_by_tree.values()),
        runs=len(entries),
    )


def _newest_batch(connection: sqlite3.Connection, label: str, checkout: str) -> list[tuple[Any, ...]]:
    newest = connection.execute(
        "SELECT batch FROM runs WHERE label = ? AND checkout = ? AND status NOT IN (?, ?, ?) AND NOT retry "
        f"{_NEWEST_FIRST} LIMIT 1",
        (stored(label), stored(checkout), PLANNED, PREPARING, INSTALLING),
    ).fetchone()
    if newest is None:
        return []
    lines = connection.execute(
        "SELECT row, status, batch, number, host FROM runs WHERE batch = ? ORDER BY number", newest
    )
    return [tuple(map(restored, line)) for line in lines]


def _where(query: RunQuery) -> tuple[str, list[Any]]:
    """The condition of a filter and its values; a search by a part of a name knows no wildcards."""
    parts: list[tuple[str, Sequence[Any]]] = [("1", ())]
    if query.label:
        parts.append(("label = ?", [stored(query.label)]))
    if query.row:
        parts.append((" OR ".join(["instr(row, ?) > 0"] * len(query.row)), list(map(stored, query.row))))
    if query.status:
        parts.append((f"status IN ({', '.join('?' * len(query.status))})", list(map(stored, query.status))))
    if query.host:
        parts.append((f"host IN ({', '.join('?' * len(query.host))})", list(map(stored, query.host))))
    if query.commit:
        parts.append(("commit_hash >= ? AND commit_hash < ?", [stored(query.commit), stored(query.commit + "g")]))
    if query.since is not None:
        parts.append(("at >= ?", [query.since]))
    if query.until is not None:
        parts.append(("at < ?", [query.until]))
    return " AND ".join(f"({text})" for text, _ in parts), [value for _, values in parts for value in values]


def _median_or_none(values: list[float]) -> float | None:
    return _median(values) if values else None


def _median(values: list[float]) -> float:
    """Not the standard library's: to import that takes longer than most answers."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
