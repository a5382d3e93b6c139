"""What all runs of this home say together: which there were, how long rows take, how long they wait, which are flaky.

The answers come from HOME/history.db, an index of the run directories: the truth is each run's record.json. A database
that is damaged or has other tables is made again, and one that cannot be used fails no run. Every answer first takes in
what the run directories have that the index has not. A retry and a run of
single tests (`--test`) ran a part of their row: only `search` counts them.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci_tasks.agent.codec import from_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.records import FAILED, INSTALLING, LOST, PASSED, PLANNED, PREPARING, UNFINISHED, RowTally, RunRecord
from ci_tasks.results import index, store
from ci_tasks.results.load import UnreadableRun, load_record

_RECENT = 20  # of the passed runs of a row, how many say how long it takes
_NEWEST = 100  # batches whose directory is compared with what was seen, for rows that were added later
_RACY = 2 * 10**9  # ns; a directory that changed so lately may change again without its time doing so
_LONGEST_SETUP = 2 * 3600.0  # seconds
_UNREADABLE = (OSError, UnreadableRun)


@dataclass(frozen=True)
class RunQuery:
    """Which runs are meant; what is empty leaves everything in. `row` are parts of names: one of them has to be in it;
    `commit` is the beginning of one; `since` and `until` are seconds since 1970, the second exclusive."""

    label: str = ""
    row: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    commit: str = ""
    since: float | None = None
    until: float | None = None
    limit: int | None = None


# -- questions ---------------------------------------------------------------------------------------------------------


def search(query: RunQuery) -> list[RunRecord]:
    """The records of the runs that `query` admits, newest first, including runs that are not over. A run whose files
    were removed has what the history knows, and `files_gone`."""
    where, values = _where(query)
    lines = _ask(f"SELECT batch, number, record_json FROM runs WHERE {where} {index.NEWEST_FIRST}", *values)
    found: list[RunRecord] = []
    for batch, number, text in lines:
        if query.limit is not None and len(found) >= query.limit:
            break
        record = _record(batch, number, text)
        if not query.status or record.status in query.status:  # it may have changed behind our back
            found.append(record)
    return found


def durations(label: str, hosts: Sequence[str] = ()) -> dict[str, float]:
    """Row → the median duration of its newest passed runs on `hosts`, in seconds without its wait for GPUs; for a row
    that has none there, on all hosts. A row that has never passed is not in it."""
    found = _ask(
        "SELECT row, host, max(seconds - coalesce(queued, 0), 0) FROM runs "
        f"WHERE label = ? AND status = ? AND seconds IS NOT NULL AND NOT retry {index.NEWEST_FIRST}",
        *(label, PASSED),
        at_any_price=False,
    )
    there: dict[str, list[float]] = defaultdict(list)
    anywhere: dict[str, list[float]] = defaultdict(list)
    for row, host, seconds in found:
        anywhere[row].append(seconds)
        there[row] += [seconds] if host in hosts else []
    return {row: _median((there[row] or known)[:_RECENT]) or 0.0 for row, known in anywhere.items()}


def expected_seconds(label: str, hosts: Sequence[str], rows: Collection[str]) -> float | None:
    """How long a run of these rows takes if they run at once: the longest of them, after what usually comes before the
    first row of the label on `hosts`, such as install steps. None if no such row has passed before."""
    took = [seconds for row, seconds in durations(label, hosts).items() if row in rows]
    began = _ask(
        f"SELECT batch, min(at) FROM runs WHERE label = ? AND host IN ({', '.join('?' * len(hosts))}) "
        f"AND seconds IS NOT NULL AND NOT retry GROUP BY batch {index.NEWEST_FIRST} LIMIT {_RECENT}",
        *(label, *hosts),
        at_any_price=False,
    )
    before = list[float]()
    for batch, at in began:
        with suppress(ValueError):  # a directory of another name
            known = at - store.started_at(batch)
            before += [known] if 0 <= known < _LONGEST_SETUP else []  # else a clock was set
    return max(took) + (_median(before) or 0.0) if took else None


def flakes(query: RunQuery = RunQuery()) -> list[RowTally]:
    """Every row and host by name, with how often it ended how; `query` says which runs count."""
    where, values = _where(replace(query, limit=None))
    lines = _ask(
        "SELECT label, row, host, status, seconds, queued, coalesce(tree, commit_hash) FROM runs "
        f"WHERE status NOT IN ({', '.join('?' * len(UNFINISHED))}) AND (final OR status != ?) AND NOT retry "
        f"AND {where} {index.NEWEST_FIRST}",
        *(*UNFINISHED, LOST, *values),
    )
    by_row: dict[tuple[str, str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for label, row, host, *entry in lines:
        by_row[label, row, host or ""].append(tuple(entry))
    return [_tally(names, by_row[names]) for names in sorted(by_row)]


def _tally(names: tuple[str, str, str], entries: list[tuple[Any, ...]]) -> RowTally:
    """`names` are label, row and host, `entries` status, seconds, seconds waited and tree of each run, newest first."""
    statuses_by_tree: dict[str, set[str]] = defaultdict(set)
    for status, _, _, tree in entries:
        if tree:
            statuses_by_tree[tree].add(status)
    passed = [entry for entry in entries if entry[0] == PASSED][:_RECENT]
    return RowTally(
        *names,
        counts=dict(Counter(status for status, *_ in entries)),
        seconds=_median([entry[1] for entry in passed if entry[1] is not None]),
        queued=_median([entry[2] for entry in passed if entry[2] is not None]),
        flaky=any({PASSED, FAILED} <= statuses for statuses in statuses_by_tree.values()),
        runs=len(entries),
    )


def latest(label: str, checkout: str) -> dict[str, str]:
    """The newest batch of a label from the checkout at that path: how each row of it ended last, in the order of the
    rows; `running` or `planned` if it has not. A batch that was only planned, or has yet to begin, is none. Empty if
    there is no such batch."""
    lines = _ask(
        "SELECT row, status FROM runs WHERE batch = ("
        "SELECT batch FROM runs WHERE label = ? AND checkout = ? AND status NOT IN (?, ?, ?) AND NOT retry "
        f"{index.NEWEST_FIRST} LIMIT 1) ORDER BY number",
        *(label, checkout, PLANNED, PREPARING, INSTALLING),
    )
    return {row: status for row, status in lines}  # noqa: C416


def labels() -> list[str]:
    return sorted(label for (label,) in _ask("SELECT DISTINCT label FROM runs WHERE label != ''"))


def update() -> None:
    """Read all runs, before files of runs are removed, or the index is asked directly."""
    _ask("SELECT 1", at_any_price=False)


def hosts() -> list[str]:
    return sorted(host for (host,) in _ask("SELECT DISTINCT host FROM runs WHERE host != ''"))


def _ask(query: str, *values: Any, at_any_price: bool = True) -> list[tuple[Any, ...]]:
    """From the database. If that cannot be used, from the run directories by themselves, which takes a second for a
    thousand; nothing without `at_any_price`: an expectation is not worth waiting for."""

    def answer(connection: index.Connection) -> list[tuple[Any, ...]]:
        sync(connection)
        return index.lines(connection, query, *values)

    try:
        return index.with_connection(answer)
    except index.HistoryUnavailable as fault:
        instead = "every run directory is read" if at_any_price else "no duration is expected"
        index.warn_once(f"the history cannot be used, so {instead}: {fault}")
        return index.in_memory(answer) if at_any_price else []


def _record(batch: str, number: int, text: str) -> RunRecord:
    """The run's own record if it exists."""
    run = index.run_dir(batch, number)
    try:
        if os.path.isdir(run.path):  # a run of another client has no plan here
            return load_record(run)
    except _UNREADABLE:
        return from_json(RunRecord, text, where="history")
    return replace(from_json(RunRecord, text, where="history"), files_gone=True)


def _where(query: RunQuery) -> tuple[str, list[Any]]:
    """The condition of a filter and its values; a search by a part of a name knows no wildcards."""
    parts: list[tuple[str, Sequence[Any]]] = [
        ("label = ?", [query.label] if query.label else []),
        (" OR ".join(["instr(row, ?) > 0"] * len(query.row)), query.row),
        (f"status IN ({', '.join('?' * len(query.status))})", query.status),
        (f"host IN ({', '.join('?' * len(query.host))})", query.host),
        ("commit_hash >= ? AND commit_hash < ?", [query.commit, query.commit + "g"] if query.commit else []),
        ("at >= ?", [] if query.since is None else [query.since]),
        ("at < ?", [] if query.until is None else [query.until]),
    ]
    used = [(text, values) for text, values in parts if values]
    return " AND ".join(["1", *(f"({text})" for text, _ in used)]), [value for _, values in used for value in values]


def _median(values: list[float]) -> float | None:
    """Not the standard library's: to import that takes longer than most answers."""
    ordered, half = sorted(values), len(values) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2 if ordered else None


# -- the index says what the run directories say -----------------------------------------------------------------------


def sync(connection: index.Connection) -> None:
    """Look at batches that are not known yet, batches with a row that may change, and new ones that have changed. What
    is final stays, also when its files are removed. Raises sqlite3.Error, OSError."""
    runs = store.home() / "runs"
    indexed = {name: (is_open, seen) for name, is_open, seen in index.lines(connection, "SELECT * FROM batches")}
    batches = dict.fromkeys(name for name, (is_open, _) in indexed.items() if is_open)
    batches |= dict.fromkeys(name for name in sorted(indexed)[-_NEWEST:] if _has_changed(runs / name, indexed[name][1]))
    batches |= dict.fromkeys(name for name in store.batches() if name not in indexed)
    unreadable = list[str]()
    for batch in batches:
        unreadable += _sync_batch(connection, runs / batch)
    if unreadable:
        index.warn_once(f"{len(unreadable)} run{'s'[: len(unreadable) > 1]} cannot be read, such as {unreadable[0]}")


def _sync_batch(connection: index.Connection, batch: Path) -> list[str]:
    """Index the rows of a batch that are not final yet. Returns why some cannot be read."""
    name, changed, entries, unreadable = batch.name, _changed_at(batch), list[dict[str, Any]](), list[str]()
    query = "SELECT number, final, status, seen FROM runs WHERE batch = ?"
    indexed = {number: known for number, *known in index.lines(connection, query, name)}
    there = {int(each): RunDir(str(batch / each)) for each in store.directories(batch) if index.is_number(each)}
    state = store.read_state_if_readable(batch)
    is_active = state is not None and state.is_active  # its command may write a record again
    is_open = not there and changed is not None  # nothing is in it yet
    for number, run in there.items():
        final, status, seen = indexed.get(number, (False, "", 0))
        run_changed = _changed_at(Path(run.path)) or 0
        if final:
            continue
        if status == PLANNED and seen and seen == run_changed:
            is_open = True
            continue
        try:
            line = index.entry(name, number, run, load_record(run), seen=run_changed)
        except _UNREADABLE as problem:
            unreadable.append(str(problem).splitlines()[0])
            is_open = True
            continue
        # One that never began may be removed.
        line["final"] = line["final"] and os.path.exists(run.record) and not is_active
        entries.append(line)
        is_open = is_open or not line["final"]
    gone = [(index.stored(name), number) for number in indexed if number not in there]
    with index.transaction(connection):
        index.put(connection, entries)
        connection.executemany("DELETE FROM runs WHERE batch = ? AND number = ? AND NOT final", gone)
        known = (index.stored(name), is_open, changed or 0)
        connection.execute("INSERT OR REPLACE INTO batches (name, open, seen) VALUES (?, ?, ?)", known)
    return unreadable


def _has_changed(batch: Path, seen: int) -> bool:
    now = _changed_at(batch)
    return now is not None and (now != seen or not now)


def _changed_at(directory: Path) -> int | None:
    """When a directory changed, in nanoseconds; 0 if that is too new to be relied on, None if there is none."""
    try:
        changed = os.stat(directory).st_mtime_ns
    except OSError:
        return None
    return changed if changed < time.time_ns() - _RACY else 0
