"""One run as the history keeps it, made from its record, and the filter that chooses among such.

A record may come from another version, or from a file that somebody has changed: whatever is no text or no number where
one is due counts as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from typing import Any

from ci_tasks.model import EXIT_CODES

PLANNED, RUNNING = "planned", "running"
STATUSES = (*EXIT_CODES, RUNNING, PLANNED)
FILES_GONE = "files_gone"
STAMP = len("20260101-120000")
_LARGEST = 1 << 63  # what a column can hold
_LONGEST = 2000  # characters of a reason


@dataclass(frozen=True)
class Filter:
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

    def admits(self, entry: Entry) -> bool:
        return (
            (not self.label or entry.label == self.label)
            and (not self.row or any(part in (entry.row or "") for part in self.row))
            and (not self.status or entry.status in self.status)
            and (not self.host or entry.host in self.host)
            and (not self.commit or (entry.commit_hash or "").startswith(self.commit))
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )


@dataclass(frozen=True)
class Entry:
    """A line of the table `runs`; the columns' meanings are in the first migration."""

    batch: str
    number: int
    stamp: str
    planned: int
    at: float
    id: str | None
    label: str | None
    row: str | None
    host: str | None
    status: str
    final: bool
    reason: str | None
    cause: str | None
    exit_code: int | None
    started: float | None
    ended: float | None
    seconds: float | None
    queued: float | None
    gpus: int | None
    simulated: bool
    checkout: str | None
    commit_hash: str | None
    tree: str | None
    seen: int

    def record(self) -> dict[str, Any]:
        """What is known of the run without its files, under the keys of its record."""
        return {
            "id": self.id or f"{self.batch}.{self.number:02d}",
            "label": self.label,
            "row": self.row,
            "host": self.host,
            "status": self.status,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "started_at": _iso(self.started),
            "ended_at": _iso(self.ended),
            "timings": {"seconds": self.seconds, "queued": self.queued},
            "checkout": {"path": self.checkout, "commit": self.commit_hash, "tree": self.tree},
            "gpus": self.gpus,
            "triage": {"cause": self.cause} if self.cause else None,
        }


COLUMNS = tuple(field.name for field in fields(Entry))


def entry(
    batch: str, number: int, record: Mapping[str, Any], *, planned: int = 0, simulated: bool = False, seen: int = 0
) -> Entry:
    """The entry of a record. `planned` is when its batch was, in nanoseconds since 1970."""
    timings, checkout, triage = (_map(record.get(name)) for name in ("timings", "checkout", "triage"))
    started = _seconds(record.get("started_at"))
    status = _text(record.get("status")) or PLANNED
    reason = _text(record.get("reason"))
    return Entry(
        batch=batch,
        number=number,
        stamp=batch[:STAMP],
        planned=planned,
        at=planned / 1e9 if started is None else started,
        id=_text(record.get("id")),
        label=_text(record.get("label")),
        row=_text(record.get("row")),
        host=_text(record.get("host")),
        status=status,
        final=status not in (RUNNING, PLANNED),
        reason=reason and reason[:_LONGEST],
        cause=_text(triage.get("cause")),
        exit_code=_whole(record.get("exit_code")),
        started=started,
        ended=_seconds(record.get("ended_at")),
        seconds=_number(timings.get("seconds")),
        queued=_number(timings.get("queued")),
        gpus=_whole(record.get("gpus")),
        simulated=simulated,
        checkout=_text(checkout.get("path")),
        commit_hash=_text(checkout.get("commit")),
        tree=_text(checkout.get("tree")),
        seen=seen,
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


def to_line(one: Entry) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    return tuple(stored(value) if isinstance(value, str) else value for value in asdict(one).values())


def from_line(line: tuple[Any, ...]) -> Entry:
    """The entry of such values, as the database gives them back."""
    return Entry(*map(restored, line))


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_LARGEST < value < _LARGEST else None  # which is false for NaN as well


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and _number(value) is not None else None


def _seconds(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _iso(seconds: float | None) -> str | None:
    if seconds is None or not math.isfinite(seconds):
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
