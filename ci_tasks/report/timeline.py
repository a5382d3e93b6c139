"""What the times of a run's rows say once it is over: which chain of rows decided its end, and how busy the GPUs were.

A row holds its GPUs from when it has them to its end: `timings.queued` is how many of its seconds it waited for them.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci_tasks.report.bisect import duration
from ci_tasks.report.table import columns

Record = Mapping[str, Any]
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(\.\d+)?(?:Z|([+-])(\d\d):?(\d\d)|)", re.IGNORECASE | re.ASCII
)
_AT_ONCE = 2.0  # seconds within which one thing follows another without a wait
_ROUNDED = 0.01  # seconds: one clock says when a row of a host ended and the next one began, to the millisecond
_MOST = 12  # rows of a chain that are listed


@dataclass(frozen=True)
class Span:
    """A row from `begin`, when it had what it needs, until its end, in seconds since the epoch."""

    row: str
    host: str
    started: float
    begin: float
    end: float
    gpus: int = 0
    ids: frozenset[int] = frozenset()


def closing(records: Sequence[Record], sites: Mapping[str, int]) -> list[str]:
    """The lines below the table of a run of several rows; none where there is nothing to tell. `sites`: host → GPUs."""
    found = [*spans(records)]
    if len(records) < 2 or not found:
        return []
    begin, end = min(one.started for one in found), max(one.end for one in found)
    path = critical(found)
    lines = [f"Wall time: {duration(end - begin)}", *_path(path, begin)]
    if busy := _busy(found, sites, end - begin):
        lines.append(f"GPUs busy: {busy}")
    return lines


def spans(records: Sequence[Record]) -> Iterator[Span]:
    """The rows that began and ended, earlier attempts included where their times are known."""
    for record in records:
        for one in (record, *(record.get("earlier") or ())):
            started, ended = seconds(one.get("started_at")), seconds(one.get("ended_at"))
            if started is None or ended is None or ended < started:
                continue
            queued = float((one.get("timings") or {}).get("queued") or 0.0)
            ids = frozenset(one.get("gpu_ids") or ())
            gpus = int(one.get("gpus", record.get("gpus")) or len(ids))
            begin = started + min(max(queued, 0.0), ended - started)
            yield Span(str(record.get("row")), str(one.get("host") or ""), started, begin, ended, gpus, ids)


def critical(found: Sequence[Span]) -> list[Span]:
    """The chain of rows that decided the end, first one first: each began when the one before it let go."""
    path = [max(found, key=lambda one: one.end)]
    while before := _before(path[-1], found):
        path.append(before)
    return path[::-1]


def _before(span: Span, found: Sequence[Span]) -> Span | None:
    """Whose end let `span` begin: on its host the last that ended before, or the row's own attempt on another; of some
    that ended together one whose GPUs it took over."""
    over = [
        one
        for one in found
        if one.end <= span.begin + _overlap(one, span)
        and one.begin < span.begin
        and (one.host == span.host or one.row == span.row)
    ]
    last = max((one.end for one in over), default=0.0)
    together = [one for one in over if one.end >= last - _AT_ONCE]
    return max(together, key=lambda one: (one.row == span.row, bool(one.ids & span.ids), one.end), default=None)


def _overlap(before: Span, span: Span) -> float:
    """By how much `before` may seem to end after `span` began: hosts' clocks differ, and GPUs are let go, for rows that
    queue there, a moment before all of a row's end is on record."""
    return _AT_ONCE if before.host != span.host or span.begin > span.started else _ROUNDED


def _path(path: Sequence[Span], begin: float) -> list[str]:
    """The chain as lines; of a long one its longest rows."""
    long = sorted(one.end - one.begin for one in path)[-_MOST:][0]
    let_go = [begin, *(one.end for one in path)]
    body = [
        (f"  {one.host}", one.row, duration(one.end - one.begin), _waited(one.begin - before))
        for one, before in zip(path, let_go, strict=False)
        if one.end - one.begin >= long
    ][:_MOST]
    total = sum(one.end - one.begin for one in path)
    many = f"{len(path)} row{'' if len(path) == 1 else 's'}"
    more = [f"  and {len(path) - len(body)} shorter"] if len(body) < len(path) else []
    return [f"Critical path: {many}, {duration(total)}", *columns(body), *more]


def _waited(wait: float) -> str:
    return f"after waiting {duration(wait)}" if wait > _AT_ONCE else ""


def _busy(found: Sequence[Span], sites: Mapping[str, int], wall: float) -> str:
    """`h100a 91 %, h100b 74 %; overall 83 %`: the part of the wall time in which rows of ours held the GPUs."""
    with_gpus = {host: gpus for host, gpus in sites.items() if gpus > 0}
    if not with_gpus or wall <= 0:
        return ""
    held = {host: sum(one.gpus * (one.end - one.begin) for one in found if one.host == host) for host in with_gpus}
    each = [f"{host} {_percent(held[host], gpus * wall)}" for host, gpus in with_gpus.items()]
    overall = f"; overall {_percent(sum(held.values()), sum(with_gpus.values()) * wall)}" if len(each) > 1 else ""
    return ", ".join(each) + overall


def _percent(part: float, whole: float) -> str:
    return f"{min(100.0, 100 * part / whole):.0f} %"


def seconds(stamp: str | None) -> float | None:
    """An ISO time as seconds since the epoch; one without an offset is UTC. None for what is no time."""
    matched = _STAMP.fullmatch(stamp or "")
    if matched is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = matched.groups()
    try:
        whole = timegm((int(year), int(month), int(day), int(hour), int(minute), int(second)))
    except ValueError:
        return None
    offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if sign else 0
    return whole - offset + float(fraction or 0)
