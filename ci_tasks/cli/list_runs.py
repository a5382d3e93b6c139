"""`runs`: looking at runs that exist, and at what all of them say together. This only reads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ci_tasks.agent.codec import encode
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.records import LOST, PLANNED, STATUSES, RowTally, RunRecord, epoch_seconds
from ci_tasks.report import lists
from ci_tasks.results import history, store
from ci_tasks.results.history import RunQuery
from ci_tasks.results.store import read_state_if_readable
from ci_tasks.safe_output import json_document, terminal_width

_AGO = re.compile(r"([0-9]{1,6})(m|h|d|w)")
_COMMIT = re.compile(r"[0-9a-f]{1,64}")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORMS = "a date (2026-11-01), a time (2026-11-01T18:30), or how long ago (30m, 12h, 3d, 2w); in local time"
_LIMIT = 20


Words = Mapping[str, Any]
"""The options of `runs` that were given, as they were typed: label, row, status, host, commit, since, until, limit."""


def show_runs(words: Words, *, json: bool) -> int:
    """Print the runs that are meant, newest first; runs that were only planned if that is asked for. Raises
    UsageError."""
    query, limit = parse_query(words), words.get("limit") or _LIMIT
    ran = query.status or tuple(status for status in STATUSES if status != PLANNED)
    records = history.search(replace(query, status=ran, limit=limit))
    if not words.keys() - {"limit"}:
        oldest = store.batch_of(records[-1].id) if len(records) >= limit else ""
        records = sorted([*_without_rows(oldest), *records], key=lambda record: store.batch_of(record.id), reverse=True)
    now = time.time()
    lines = lists.runs(records, [_age(record, now) for record in records], terminal_width()) if records else []
    more = [f"the newest {limit}; `--limit N` lists more"] if len(records) == limit and "limit" not in words else []
    _print(records, [*lines, *more], json)
    return 0


def show_flakes(words: Words, *, json: bool) -> int:
    """Print how often each row ended how on each host. Raises UsageError."""
    tallies = history.flakes(parse_query(words))
    _print(tallies, lists.flakes(tallies, terminal_width()) if tallies else [], json)
    return 0


def _print(records: Sequence[RunRecord] | Sequence[RowTally], lines: Sequence[str], json: bool) -> None:
    if json:
        print(json_document([encode(record) for record in records]))
    else:
        print("\n".join(lines) or ("no matching run" if history.labels() else "no runs yet"))


def _age(record: RunRecord, now: float) -> str:
    """How long ago a run started, or its command if it has not."""
    with suppress(ValueError, OverflowError, OSError):
        started = epoch_seconds(record.started_at)
        return lists.age(max(0.0, now - (store.started_at(record.id) if started is None else started)))
    return "-"


def _without_rows(oldest: str) -> Iterator[RunRecord]:
    """The commands from `oldest` on that have yet to find their rows, or were killed before, each as a run."""
    for name in store.batches():
        state = read_state_if_readable(store.home() / "runs" / name) if name >= oldest else None
        if state is not None and (state.is_active or state.was_killed) and not any(store.rows_of(name)):
            status, reason = (LOST, state.why_not_started) if state.was_killed else (state.phase, "")
            yield RunRecord(name, "", "", None, status, reason)


# -- the filter --------------------------------------------------------------------------------------------------------


def parse_query(words: Words) -> RunQuery:
    """The filter that the words mean. Raises UsageError, with what is valid."""
    now, label = time.time(), words.get("label", "")
    since, until = (parse_time(flag, words.get(flag, ""), now) for flag in ("since", "until"))
    if since is not None and until is not None and since >= until:
        raise UsageError(f"--since {words['since']} is not before --until {words['until']}", hint=f"either is {_FORMS}")
    given = (words.get(name, "").split(",") for name in ("row", "host", "status"))
    rows, hosts, statuses = (tuple(name.strip() for name in names if name.strip()) for names in given)
    _check_names("status", statuses, STATUSES)
    if hosts:
        from ci_tasks.run.hosts_files import open_config

        _check_names("host", hosts, (*open_config(quiet=True).hosts, *history.hosts()))
    labels = history.labels() if label else []
    if labels and label not in labels:
        raise UnknownName("label", label, labels, where="the history")
    commit = words.get("commit", "").strip().lower()
    if commit and not _COMMIT.fullmatch(commit):
        what = f"--commit is the beginning of a commit's hash, not {words['commit']!r}"
        raise UsageError(what, hint="such as 25740fd8")
    return RunQuery(label, rows, statuses, hosts, commit, since, until, words.get("limit"))


def parse_time(flag: str, text: str, now: float) -> float | None:
    """The seconds since 1970 that a date, a time or a while ago means; None for no text. The whole day of a date is
    meant, so `--until` gets its end. Raises UsageError."""
    text = text.strip()
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    with suppress(ValueError, OverflowError, OSError):
        whole_day = timedelta(days=int(flag == "until" and len(text) <= len("2026-11-01")))
        return (datetime.fromisoformat(text) + whole_day).timestamp()
    raise UsageError(f"--{flag} is no date: {text!r}", hint=f"it is {_FORMS}")


def _check_names(kind: str, names: Sequence[str], valid: Sequence[str]) -> None:
    for name in names:
        if name not in valid:
            raise UnknownName(kind, name, list(dict.fromkeys(valid)))
