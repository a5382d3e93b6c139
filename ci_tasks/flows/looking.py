"""`runs`: looking at runs that exist, and at what all of them say together. This only reads."""

from __future__ import annotations

import json as json_module
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ci_tasks.errors import UnknownName, UsageError, did_you_mean
from ci_tasks.report import history as tables
from ci_tasks.runs import history
from ci_tasks.runs.history import STATUSES, Filter

_AGO = re.compile(r"([0-9]{1,6})(m|h|d|w)")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DATES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")
_FORMS = "a date (2026-11-01), a time (2026-11-01T18:30), or how long ago (30m, 12h, 3d, 2w); in local time"
_LIMIT = 20
_COMMIT = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class Words:
    """The flags of `runs`, as they were typed."""

    label: str = ""
    row: str = ""
    status: str = ""
    host: str = ""
    commit: str = ""
    since: str = ""
    until: str = ""
    limit: str = ""


def show_runs(words: Words, *, json: bool) -> int:
    """Print the runs that are meant, newest first. Raises UsageError."""
    asked = wanted(words)
    found = history.search(replace(asked, limit=asked.limit or _LIMIT))
    if json:
        _print_json(found)
    elif found:
        print("\n".join(tables.listed([{**record, "started": _local(record["started_at"])} for record in found])))
    else:
        print(_nothing(words))
    return 0


def show_flakes(words: Words, *, json: bool) -> int:
    """Print how often each row ended how on each host. Raises UsageError."""
    found = [tally.public() for tally in history.flakes(filter=wanted(words))]
    if json:
        _print_json(found)
    elif found:
        print("\n".join(tables.tallied(found)))
    else:
        print(_nothing(words))
    return 0


def wanted(words: Words) -> Filter:
    """The filter that the words mean. Raises UsageError, with what is valid."""
    now = time.time()
    since, until = moment("since", words.since, now), moment("until", words.until, now)
    if since is not None and until is not None and since >= until:
        raise UsageError(f"--since {words.since} is not before --until {words.until}", hint=f"either is {_FORMS}")
    commit = words.commit.strip().lower()
    if commit and not _COMMIT.fullmatch(commit):
        raise UsageError(f"--commit is the beginning of a commit's hash, not {words.commit!r}", hint="such as 25740fd8")
    return Filter(
        label=words.label,
        row=_parts(words.row),
        status=_statuses(words.status),
        host=_parts(words.host),
        commit=commit,
        since=since,
        until=until,
        limit=_limit(words.limit),
    )


def moment(flag: str, text: str, now: float) -> float | None:
    """The seconds since 1970 that a date, a time or a while ago means; None for no text. The whole day of a date is
    meant, so `--until` gets its end. Raises UsageError."""
    text = text.strip()
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    for form in _DATES:
        try:
            found = datetime.strptime(text, form)
            whole_day = flag == "until" and form == _DATES[0]
            return (found + timedelta(days=1) if whole_day else found).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
    raise UsageError(f"--{flag} is no date: {text!r}", hint=f"it is {_FORMS}")


def _statuses(text: str) -> tuple[str, ...]:
    for status in _parts(text):
        if status not in STATUSES:
            raise UnknownName("status", status, STATUSES)
    return _parts(text)


def _limit(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--limit is a number of runs, not {text!r}", hint="such as --limit 20")
    return int(text)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _nothing(words: Words) -> str:
    """That there is none; where a label may be mistyped, which there are."""
    known = history.labels()
    if not known:
        return "no runs yet"
    if words.label and words.label not in known:
        near = did_you_mean(words.label, known)
        return f"no runs of label {words.label!r}{near}\nthere are runs of: {', '.join(known)}"
    return "no runs like that"


def _local(moment: str | None) -> str:
    """A record's time as the names of runs have it, in local time."""
    try:
        return datetime.fromisoformat(str(moment)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


def _print_json(found: Sequence[Mapping[str, Any]]) -> None:
    print(json_module.dumps(found, indent=2, ensure_ascii=False))
