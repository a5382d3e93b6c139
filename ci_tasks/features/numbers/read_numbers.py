"""The runs of a row that passed, as numbers. What a log gives is kept beside it, so that it is read once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_record, write_record
from ci_tasks.features.difference.read_run import read_log_series
from ci_tasks.features.numbers.bands import MOST_RUNS, thinned
from ci_tasks.features.numbers.result import MEMORY, SECONDS, MetricPoint, RunNumbers, as_json, from_json
from ci_tasks.records import PASSED, RunRecord
from ci_tasks.results.history.passed_runs import runs_of_row
from ci_tasks.results.metrics import Series
from ci_tasks.results.read_record import UnreadableRun, read_run_record

_FILE = "numbers.json"


@dataclass(frozen=True)
class _KeptPoint:
    training: int
    step: int | None
    value: float | str


@dataclass(frozen=True)
class _Kept:
    """The file. `log` is the digest of the log that `points` were read from; `passed` are the other numbers of a run
    that passed, as they were read from the record with the stamp `record`."""

    log: str
    points: Mapping[str, tuple[_KeptPoint, ...]] = field(default_factory=dict)
    record: tuple[int, ...] = ()
    passed: RunNumbers | None = None

    def read_points(self) -> dict[str, tuple[MetricPoint, ...]]:
        return {
            name: tuple(MetricPoint(each.training, each.step, from_json(each.value)) for each in several)
            for name, several in self.points.items()
        }


def numbers_of(run: RunDir, record: RunRecord) -> RunNumbers:
    """What a run gave; of one whose log is gone, what its record has."""
    values = dict(_points(run, record))
    for name, value in record.metrics.items():
        if isinstance(value, (int, float)) and name not in values:
            values[name] = (MetricPoint(1, None, float(value)),)
    if record.timings.seconds is not None:
        values[SECONDS] = (MetricPoint(1, None, record.timings.seconds - (record.timings.queued or 0.0)),)
    used = [peaks.used for peaks in (record.gpu_use.gpus if record.gpu_use else ()) if peaks.used is not None]
    if used:
        values[MEMORY] = (MetricPoint(1, None, float(max(used))),)
    return RunNumbers(record.id, record.started_at or "", kind_of(record), values, bool(record.marks))


def kind_of(record: RunRecord) -> str:
    """What numbers are compared within: `8 x NVIDIA H100, image@sha256:…`."""
    around = record.environment
    models = sorted({gpu.name for gpu in around.gpus})
    host = record.host or "local"
    if record.gpus:
        host = f"{record.gpus} x {' and '.join(models)}" if models else f"{record.gpus} GPUs of {host}"
    without = "no container" if around.runtime in (None, "none") else "image not seen"
    return f"{host}, {around.digest or without}"


def passed_numbers(label: str, row: str) -> Iterator[RunNumbers]:
    """Of the row's newest runs that passed, the newest first. With an overlay a run is compared with the others, and
    teaches nothing of them; neither does one whose record is damaged."""
    for run in runs_of_row(label, row, MOST_RUNS):
        kept, stamp = _read(run), _stamp(run.record)
        if kept is not None and kept.passed is not None and stamp and kept.record == stamp:
            yield replace(kept.passed, values={**kept.read_points(), **kept.passed.values})
            continue
        record = record_or_none(run)
        if record is not None and record.status == PASSED and not (record.checkout and record.checkout.overlays):
            numbers = numbers_of(run, record)
            kept = _read(run) or _Kept(record.log.sha256 or "")
            others = {name: points for name, points in numbers.values.items() if name not in kept.points}
            _write(run, replace(kept, record=stamp, passed=replace(numbers, values=others)))
            yield numbers


def record_or_none(run: RunDir) -> RunRecord | None:
    try:
        return read_run_record(run)
    except (UnreadableRun, OSError):
        return None


def _points(run: RunDir, record: RunRecord) -> Mapping[str, tuple[MetricPoint, ...]]:
    digest, kept = record.log.sha256 or "", _read(run)
    if kept is not None and kept.log == digest:
        return kept.read_points()
    points = points_of(read_log_series(run))
    every = {
        name: tuple(_KeptPoint(each.training, each.step, as_json(each.value)) for each in several)
        for name, several in points.items()
    }
    _write(run, _Kept(digest, every))
    return points


def _read(run: RunDir) -> _Kept | None:
    try:
        return read_record(_Kept, os.path.join(run.path, _FILE))
    except (OSError, RecordError):
        return None


def _write(run: RunDir, kept: _Kept) -> None:
    try:
        write_record(os.path.join(run.path, _FILE), kept)
    except OSError:
        pass  # it is read again next time


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def points_of(series: Iterable[Series]) -> dict[str, tuple[MetricPoint, ...]]:
    """At most bands.MOST_STEPS points of each training."""
    return {
        each.name: tuple(
            point
            for training, part in enumerate(each.parts, 1)
            for point in thinned([MetricPoint(training, step, value) for step, value in part])
        )
        for each in series
    }
