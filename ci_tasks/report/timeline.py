"""What the times of a run's rows say once it is over: which chain of rows decided its end, and how busy the GPUs were.

A row holds its GPUs from when it has them to its end: `queue_seconds` is how long it waited for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.records import RunRecord, epoch_seconds
from ci_tasks.report.table import Table, duration

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


def summary_lines(records: Sequence[RunRecord], gpus_by_host: Mapping[str, int], width: int | None = None) -> list[str]:
    """The lines below the table of a run of several rows; none where there is nothing to tell."""
    all_spans = [*spans(records)]
    if len(records) < 2 or not all_spans:
        return []
    begin, end = min(span.started for span in all_spans), max(span.end for span in all_spans)
    path = critical_path(all_spans)
    lines = [f"Wall time: {duration(end - begin)}", *_path(path, begin, width)]
    if busy := _busy(all_spans, gpus_by_host, end - begin):
        lines.append(f"GPUs busy: {busy}")
    return lines


def spans(records: Sequence[RunRecord]) -> Iterator[Span]:
    """The rows that began and ended, earlier attempts included where their times are known."""
    for record in records:
        for attempt in record.attempts:
            started, ended = epoch_seconds(attempt.started_at), epoch_seconds(attempt.ended_at)
            if started is None or ended is None or ended < started:
                continue
            ids = frozenset(attempt.gpu_ids)
            queued = 0.0 if attempt.slurm_job_id else attempt.queue_seconds or 0.0  # Slurm's queue is before the start
            begin = started + min(max(queued, 0.0), ended - started)
            yield Span(record.row, attempt.host or "", started, begin, ended, record.gpus or len(ids), ids)


def critical_path(all_spans: Sequence[Span]) -> list[Span]:
    """The chain of rows that decided the end, first one first: each began when the one before it let go."""
    path = [max(all_spans, key=lambda span: span.end)]
    while before := _before(path[-1], all_spans):
        path.append(before)
    return path[::-1]


def _before(span: Span, all_spans: Sequence[Span]) -> Span | None:
    """Whose end let `span` begin: on its host the last that ended before, or the row's own attempt on another; of some
    that ended together one whose GPUs it took over."""
    over = [
        other
        for other in all_spans
        if other.end <= span.begin + _overlap(other, span)
        and other.begin < span.begin
        and (other.host == span.host or other.row == span.row)
    ]
    last = max((other.end for other in over), default=0.0)
    together = [other for other in over if other.end >= last - _AT_ONCE]
    return max(together, key=lambda other: (other.row == span.row, bool(other.ids & span.ids), other.end), default=None)


def _overlap(before: Span, span: Span) -> float:
    """By how much `before` may seem to end after `span` began: hosts' clocks differ, and GPUs are let go, for rows that
    queue there, a moment before all of a row's end is on record."""
    return _AT_ONCE if before.host != span.host or span.begin > span.started else _ROUNDED


def _path(path: Sequence[Span], begin: float, width: int | None) -> list[str]:
    """The chain as lines; of a long one its longest rows."""
    long = sorted(span.end - span.begin for span in path)[-_MOST:][0]
    released_at = [begin, *(span.end for span in path)]
    body = [
        (f"  {span.host}", span.row, duration(span.end - span.begin), _waited(span.begin - before))
        for span, before in zip(path, released_at, strict=False)
        if span.end - span.begin >= long
    ][:_MOST]
    total = sum(span.end - span.begin for span in path)
    more = [f"  and {len(path) - len(body)} shorter"] if len(body) < len(path) else []
    return [f"Critical path: {counted(len(path), 'row')}, {duration(total)}", *Table(body).text(width), *more]


def _waited(wait: float) -> str:
    return f"after waiting {duration(wait)}" if wait > _AT_ONCE else ""


def _busy(all_spans: Sequence[Span], gpus_by_host: Mapping[str, int], wall: float) -> str:
    """`h100a 91 %, h100b 74 %; overall 83 %`: the part of the wall time in which rows of ours held the GPUs."""
    with_gpus = {host: gpus for host, gpus in gpus_by_host.items() if gpus > 0}
    if not with_gpus or wall <= 0:
        return ""
    held = {
        host: sum(span.gpus * (span.end - span.begin) for span in all_spans if span.host == host) for host in with_gpus
    }
    each = [f"{host} {_percent(held[host], gpus * wall)}" for host, gpus in with_gpus.items()]
    overall = f"; overall {_percent(sum(held.values()), sum(with_gpus.values()) * wall)}" if len(each) > 1 else ""
    return ", ".join(each) + overall


def _percent(part: float, whole: float) -> str:
    return f"{min(100.0, 100 * part / whole):.0f} %"
