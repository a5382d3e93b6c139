"""What the times of a run's rows say once it is over: how long all took, and how busy the GPUs were.

A row holds its GPUs from when it has them to its end: `queue_seconds` is how long it waited for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import RunRecord, epoch_seconds
from ci_tasks.report.table import duration


@dataclass(frozen=True)
class Span:
    """A row from `begin`, when it had what it needs, until its end, in seconds since the epoch."""

    host: str
    started: float
    begin: float
    end: float
    gpus: int = 0


def summary_lines(records: Sequence[RunRecord], gpus_by_host: Mapping[str, int]) -> list[str]:
    """The lines below the table of a run of several rows; none where there is nothing to tell."""
    all_spans = [*spans(records)]
    if len(records) < 2 or not all_spans:
        return []
    wall = max(span.end for span in all_spans) - min(span.started for span in all_spans)
    busy = _busy(all_spans, gpus_by_host, wall)
    return [f"Wall time: {duration(wall)}", *([f"GPUs busy: {busy}"] if busy else [])]


def spans(records: Sequence[RunRecord]) -> Iterator[Span]:
    """The rows that began and ended, earlier attempts included where their times are known."""
    for record in records:
        for attempt in record.attempts:
            started, ended = epoch_seconds(attempt.started_at), epoch_seconds(attempt.ended_at)
            if started is None or ended is None or ended < started:
                continue
            queued = 0.0 if attempt.slurm_job_id else attempt.queue_seconds or 0.0  # Slurm's queue is before the start
            begin = started + min(max(queued, 0.0), ended - started)
            yield Span(attempt.host or "", started, begin, ended, record.gpus or len(attempt.gpu_ids))


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
