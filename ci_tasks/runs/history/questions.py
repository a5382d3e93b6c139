"""What can be asked of the history. Every answer first takes in the runs that have ended since the last one."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ci_tasks.model import FAILED, PASSED
from ci_tasks.runner.layout import RunDir
from ci_tasks.runs import store
from ci_tasks.runs.history import database
from ci_tasks.runs.history.catchup import UNREADABLE, catch_up
from ci_tasks.runs.history.entry import COLUMNS, FILES_GONE, PLANNED, Entry, Filter, entry, from_line, restored, stored
from ci_tasks.runs.record import load

_RECENT = 20  # of the passed runs of a row, how many say how long it takes
_NEWEST_FIRST = "ORDER BY stamp DESC, planned DESC, batch DESC, number DESC"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Durations:
    """The median of what a row took where it passed, in seconds without its wait for GPUs, and of how many runs."""

    seconds: float
    samples: int


@dataclass(frozen=True)
class Tally:
    """A row on a host: how often it ended how, and the medians of its newest passed runs: seconds, and seconds that it
    waited. `flaky`: it has passed and failed there on one and the same tree."""

    label: str
    row: str
    host: str
    counts: Mapping[str, int]
    seconds: float | None
    queued: float | None
    flaky: bool

    @property
    def runs(self) -> int:
        return sum(self.counts.values())

    def public(self) -> dict[str, Any]:
        return {**asdict(self), "runs": self.runs}


@dataclass(frozen=True)
class Last:
    """How a row of a batch ended the last time; `running` or `planned` where it has not."""

    row: str
    status: str
    batch: str
    id: str
    host: str


def search(filter: Filter) -> list[dict[str, Any]]:
    """The records of the runs that `filter` admits, newest first; those that go on too. A run whose files were removed
    has what the history knows, and `files_gone`."""
    return _answer(lambda connection: list(_found(connection, filter)))


def durations(label: str, hosts: Sequence[str] = ()) -> dict[str, float]:
    """Row → seconds that it may be expected to take; a row that has never passed is not in it. See `samples`."""
    return {row: known.seconds for row, known in samples(label, hosts).items()}


def samples(label: str, hosts: Sequence[str] = ()) -> dict[str, Durations]:
    """What rows took, by their newest runs on `hosts`; of a row that has none there, on all hosts with real GPUs. Runs
    on pretend GPUs count for hosts that are named, and where no host is. Empty where the database cannot be used: an
    expectation is not worth waiting for."""
    try:
        lines = database.ask(lambda connection: _passed(_caught_up(connection), label))
    except database.Fault as fault:
        database.say(f"no expected durations: {fault}")
        return {}
    by_rank: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, host, simulated, seconds in lines:
        rank = 0 if host in hosts else 1 + bool(simulated)
        if row is not None and not (hosts and rank == 2) and len(by_rank[row][rank]) < _RECENT:
            by_rank[row][rank].append(seconds)
    best = {row: ranks[min(ranks)] for row, ranks in by_rank.items() if ranks}
    return {row: Durations(_median(taken), len(taken)) for row, taken in best.items()}


def flakes(label: str = "", filter: Filter = Filter()) -> list[Tally]:
    """Every row and host of a label, or of all, by name; `filter` says which runs count."""
    wanted = replace(filter, label=label or filter.label, limit=None)
    lines = _answer(lambda connection: _tallied(connection, wanted))
    by_row: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for line in lines:
        by_row[line[:3]].append(line[3:])
    tallies = [_tally([restored(name) or "" for name in names], found) for names, found in by_row.items()]
    return sorted(tallies, key=lambda tally: (tally.label, tally.row, tally.host))


def latest(label: str, checkout: str) -> list[Last]:
    """The newest batch of a label from the checkout at that path: how each row of it ended last, in the order of the
    rows. A batch that was only planned is none. Empty where there is no such batch."""
    lines = _answer(lambda connection: _newest_batch(connection, label, checkout))
    last = {row: Last(row or "", status, batch, id, host or "") for row, status, batch, id, host in lines}
    return list(last.values())


def labels() -> list[str]:
    """The labels of which there are runs, by name."""
    found = _answer(lambda connection: connection.execute("SELECT DISTINCT label FROM runs").fetchall())
    return sorted(restored(label) for (label,) in found if label)


def _answer(question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
    """From the database; where that cannot be used, from the run directories by themselves."""
    try:
        return database.ask(lambda connection: question(_caught_up(connection)))
    except database.Fault as fault:
        database.say(f"the history cannot be used, so every run directory is read: {fault}")
        with database.in_memory() as connection:
            return question(_caught_up(connection))


def _caught_up(connection: sqlite3.Connection) -> sqlite3.Connection:
    catch_up(connection)
    return connection


def _found(connection: sqlite3.Connection, filter: Filter) -> Iterator[dict[str, Any]]:
    where, values = _where(filter)
    lines = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {where} {_NEWEST_FIRST}", values)
    left = filter.limit
    for line in lines:
        if left is not None and left <= 0:
            return
        record = _truth(from_line(line), filter)
        if record is not None:
            left = None if left is None else left - 1
            yield record


def _truth(known: Entry, filter: Filter) -> dict[str, Any] | None:
    """The run's own record where it is there; None where that says otherwise than the history, and is not meant."""
    run = RunDir(str(store.home() / "runs" / known.batch / f"{known.number:02d}"))
    if not os.path.exists(run.plan):
        return {**known.record(), FILES_GONE: True}
    try:
        record = load(run)
    except UNREADABLE:
        return known.record()
    read = entry(known.batch, known.number, record, planned=known.planned)
    if not filter.admits(read):
        return None
    return {**known.record(), **record} if _is_sound(record) else known.record()


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether what everybody looks at in a record is what it should be; somebody may have edited the file."""
    wanted: dict[str, Any] = {"id": str, "status": str, "reason": (str, type(None)), "triage": (dict, type(None))}
    return all(isinstance(record.get(name), kind) for name, kind in wanted.items())


def _passed(connection: sqlite3.Connection, label: str) -> list[tuple[Any, ...]]:
    lines = connection.execute(
        "SELECT row, host, simulated, max(seconds - coalesce(queued, 0), 0) FROM runs "
        f"WHERE label = ? AND status = ? AND seconds IS NOT NULL {_NEWEST_FIRST}",
        (stored(label), PASSED),
    )
    return [tuple(map(restored, line)) for line in lines]


def _tallied(connection: sqlite3.Connection, filter: Filter) -> list[tuple[Any, ...]]:
    where, values = _where(filter)
    return connection.execute(
        "SELECT label, row, host, status, seconds, queued, coalesce(tree, commit_hash) FROM runs "
        f"WHERE final AND {where} {_NEWEST_FIRST}",
        values,
    ).fetchall()


def _tally(names: Sequence[str], found: list[tuple[Any, ...]]) -> Tally:
    """`names` are label, row and host, `found` status, seconds, seconds waited and tree of each run, newest first."""
    seen: dict[str, set[str]] = defaultdict(set)
    for status, _, _, tree in found:
        if tree:
            seen[tree].add(status)
    passed = [line for line in found if line[0] == PASSED][:_RECENT]
    return Tally(
        label=names[0],
        row=names[1],
        host=names[2],
        counts=dict(Counter(status for status, *_ in found)),
        seconds=_median_or_none([line[1] for line in passed if line[1] is not None]),
        queued=_median_or_none([line[2] for line in passed if line[2] is not None]),
        flaky=any({PASSED, FAILED} <= statuses for statuses in seen.values()),
    )


def _newest_batch(connection: sqlite3.Connection, label: str, checkout: str) -> list[tuple[Any, ...]]:
    newest = connection.execute(
        f"SELECT batch FROM runs WHERE label = ? AND checkout = ? AND status != ? {_NEWEST_FIRST} LIMIT 1",
        (stored(label), stored(checkout), PLANNED),
    ).fetchone()
    if newest is None:
        return []
    lines = connection.execute("SELECT row, status, batch, id, host FROM runs WHERE batch = ? ORDER BY number", newest)
    return [tuple(map(restored, line)) for line in lines]


def _where(filter: Filter) -> tuple[str, list[Any]]:
    """The condition of a filter and its values; a search by a part of a name knows no wildcards."""
    parts: list[tuple[str, Sequence[Any]]] = [("1", ())]
    if filter.label:
        parts.append(("label = ?", [stored(filter.label)]))
    if filter.row:
        parts.append((" OR ".join(["instr(row, ?) > 0"] * len(filter.row)), list(map(stored, filter.row))))
    if filter.status:
        parts.append((f"status IN ({', '.join('?' * len(filter.status))})", list(map(stored, filter.status))))
    if filter.host:
        parts.append((f"host IN ({', '.join('?' * len(filter.host))})", list(map(stored, filter.host))))
    if filter.commit:
        parts.append(("commit_hash >= ? AND commit_hash < ?", [stored(filter.commit), stored(filter.commit + "g")]))
    if filter.since is not None:
        parts.append(("at >= ?", [filter.since]))
    if filter.until is not None:
        parts.append(("at < ?", [filter.until]))
    return " AND ".join(f"({text})" for text, _ in parts), [value for _, values in parts for value in values]


def _median_or_none(values: list[float]) -> float | None:
    return _median(values) if values else None


def _median(values: list[float]) -> float:
    """Not the standard library's: to import that takes longer than most answers."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
