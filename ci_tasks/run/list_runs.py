"""`runs`: looking at runs that exist, and at what all of them say together. This only reads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import read_plan
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.records import LOST, PLANNED, STATUSES, WAITING, RowTally, RunRecord
from ci_tasks.report import lists
from ci_tasks.results import history, store
from ci_tasks.results.batch_state import read_state_if_readable
from ci_tasks.results.history import RunQuery
from ci_tasks.results.store import Batch
from ci_tasks.run.journal import read as read_journal
from ci_tasks.safe_output import json_document, terminal_width

_AGO = re.compile(r"([0-9]{1,6})(m|h|d|w)")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(_DAY.pattern + r"[T ]\d\d:\d\d(:\d\d)?")
_FORMS = "a date (2026-11-01), a time (2026-11-01T18:30), or how long ago (30m, 12h, 3d, 2w); in local time"
_LIMIT = 20
_MAX_BATCHES = 100
_COMMIT = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class RunFilterOptions:
    """The flags of `runs`, as they were typed."""

    label: str = ""
    row: str = ""
    status: str = ""
    host: str = ""
    commit: str = ""
    since: str = ""
    until: str = ""
    limit: int | None = None


def show_runs(options: RunFilterOptions, *, json: bool) -> int:
    """Print the runs that are meant, newest first; what was only planned where that is asked for. Raises UsageError."""
    query = parse_query(options)
    ran = query.status or tuple(status for status in STATUSES if status != PLANNED)
    records = history.search(replace(query, status=ran, limit=query.limit or _LIMIT))
    if options == RunFilterOptions(limit=options.limit):
        records = _in_time([*_batches_without_rows(), *_rows_without_host(records, query.limit or _LIMIT)], records)
    if json:
        _print_json(records)
    elif records:
        now = time.time()
        print("\n".join(lists.runs(records, [_age(record, now) for record in records], terminal_width())))
    else:
        print("no runs like that" if history.labels() else "no runs yet")
    return 0


def _batches_without_rows() -> Iterator[RunRecord]:
    """Commands that have yet to find their rows, or were killed before, as a run each."""
    for batch in history.batches_without_rows():
        state = read_state_if_readable(store.home() / "runs" / batch)
        if state is not None and state.is_active:
            yield RunRecord(batch, label="", row="", host=None, status=state.phase)
        elif state is not None and state.was_killed:
            yield RunRecord(batch, label="", row="", host=None, status=LOST, reason=state.why_not_started)


def _rows_without_host(records: Sequence[RunRecord], limit: int) -> Iterator[RunRecord]:
    """Rows of commands for several hosts that no host has got: they have no run directory. `records` are those which
    are listed, at most `limit`: commands before them are not looked at."""
    oldest = store.batch_of(records[-1].id) if len(records) >= limit else ""
    for batch in sorted(store.batches(), reverse=True)[:_MAX_BATCHES]:
        path = store.home() / "runs" / batch
        state = read_state_if_readable(path) if batch >= oldest else None
        if state is None or not (state.is_active or state.was_killed):
            continue
        status, reason = (LOST, state.why_not_started) if state.was_killed else (WAITING, "")
        for row, label in _rows_without_directory(Batch(batch, path)):
            yield RunRecord(batch, label=label, row=row, host=None, status=status, reason=reason)


def _rows_without_directory(batch: Batch) -> Iterator[tuple[str, str]]:
    """Names of rows, each with the label."""
    with suppress(UsageError, OSError, ValueError):
        journal = read_journal(batch)
        there = {read_plan(run).row for _, run in store.rows_of(batch.id)}
        if journal is not None and there:
            gone = {entry.row for entry in journal.entries}
            yield from ((row, journal.label) for row in journal.rows if row not in there | gone)


def _in_time(added: Sequence[RunRecord], records: Sequence[RunRecord]) -> list[RunRecord]:
    """Both, each of `added` before the first record of its own or an older command."""
    both = list(records)
    for record in reversed(added):
        batch = store.batch_of(record.id)
        older = (at for at, other in enumerate(both) if store.batch_of(other.id) <= batch)
        both.insert(next(older, len(both)), record)
    return both


def show_flakes(options: RunFilterOptions, *, json: bool) -> int:
    """Print how often each row ended how on each host. Raises UsageError."""
    tallies = history.flakes(parse_query(options))
    if json:
        _print_json(tallies)
    elif tallies:
        print("\n".join(lists.flakes(tallies, terminal_width())))
    else:
        print("no runs like that" if history.labels() else "no runs yet")
    return 0


def parse_query(options: RunFilterOptions) -> RunQuery:
    """The filter that the words mean. Raises UsageError, with what is valid."""
    now = time.time()
    since, until = parse_time("since", options.since, now), parse_time("until", options.until, now)
    if since is not None and until is not None and since >= until:
        raise UsageError(f"--since {options.since} is not before --until {options.until}", hint=f"either is {_FORMS}")
    _check_hosts(_split_names(options.host))
    labels = history.labels() if options.label else []
    if labels and options.label not in labels:
        raise UnknownName("label", options.label, labels, where="the history")
    commit = options.commit.strip().lower()
    if commit and not _COMMIT.fullmatch(commit):
        raise UsageError(
            f"--commit is the beginning of a commit's hash, not {options.commit!r}", hint="such as 25740fd8"
        )
    return RunQuery(
        label=options.label,
        row=_split_names(options.row),
        status=_statuses(options.status),
        host=_split_names(options.host),
        commit=commit,
        since=since,
        until=until,
        limit=options.limit,
    )


def parse_time(flag: str, text: str, now: float) -> float | None:
    """The seconds since 1970 that a date, a time or a while ago means; None for no text. The whole day of a date is
    meant, so `--until` gets its end. Raises UsageError."""
    text = text.strip()
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    if _DAY.fullmatch(text) or _TIME.fullmatch(text):
        with suppress(ValueError, OverflowError, OSError):
            whole_day = timedelta(days=int(flag == "until" and len(text) == len("2026-11-01")))
            return (datetime.fromisoformat(text) + whole_day).timestamp()
    raise UsageError(f"--{flag} is no date: {text!r}", hint=f"it is {_FORMS}")


def _statuses(text: str) -> tuple[str, ...]:
    for status in _split_names(text):
        if status not in STATUSES:
            raise UnknownName("status", status, STATUSES)
    return _split_names(text)


def _check_hosts(names: Sequence[str]) -> None:
    """Raises UnknownName for one that hosts.yaml does not have and on which nothing ran."""
    if not names:
        return
    from ci_tasks.run.hosts_files import open_config

    valid = {*open_config(quiet=True).hosts, *history.hosts()}
    for name in names:
        if name not in valid:
            raise UnknownName("host", name, valid)


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _age(record: RunRecord, now: float) -> str:
    """How long ago a run started, or its command where it has not."""
    try:
        if record.started_at:
            started = datetime.fromisoformat(record.started_at).timestamp()
        else:
            started = store.started_at(record.id)
    except (ValueError, OverflowError, OSError):
        return "-"
    return lists.age(max(0.0, now - started))


def _print_json(records: Sequence[RunRecord] | Sequence[RowTally]) -> None:
    print(json_document([encode(record) for record in records]))
