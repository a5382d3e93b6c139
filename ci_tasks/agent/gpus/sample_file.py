"""gpu.csv: one row a second for each GPU at first, and never more than MAX_ROWS.

The newest minutes stay as they are, since a failure is explained by what was just before it. Older rows are merged
into windows of 2, 4, 8 ... seconds, and keep their peaks.
"""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Callable, Dict, Iterable, List, Sequence

from .. import codec
from ..files import replace_file
from ..records import GpuSample

MAX_ROWS = 10_000  # some 2 MB: 24 hours of 8 GPUs
RECENT_SECONDS = 300.0
LISTED_SECONDS = 5.0  # for which a process counts as being on a GPU after it was listed there
FREED_SECONDS = 1.0  # after which the memory of a process that ended is free
COLUMNS = [field.name for field in fields(GpuSample)]
_TEXTS = ("uuid", "problem")  # the other cells are JSON


def rows_of(samples: Iterable[GpuSample], header: bool = False) -> bytes:
    """An empty cell has its default, which is mostly "not known"."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    for sample in samples:
        cells = codec.encode(sample, versioned=False, compact=True).items()
        writer.writerow({name: cell if name in _TEXTS else json.dumps(cell) for name, cell in cells})
    return out.getvalue().encode("utf-8", "backslashreplace")


def read_gpu_samples(text: str) -> List[GpuSample]:
    """The rows of gpu.csv, without those that cannot be decoded: half written, or written by a job."""
    samples = []
    with suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text.replace("\0", ""), newline="")):
            with suppress(codec.RecordError):
                cells = {name: cell for name, cell in row.items() if name in COLUMNS and cell}
                values = {
                    name: cell if name in _TEXTS else codec.parse(cell, where=name) for name, cell in cells.items()
                }
                samples.append(codec.decode(GpuSample, values, where="a row"))
    return samples


class SampleFile:
    """Appends samples to the file; the first one has to be a measurement. It is full or gone: then samples are lost."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._samples: List[GpuSample] = []
        self._width = 1.0
        self._lock = threading.Lock()

    def add(self, sample: GpuSample) -> None:
        with self._lock, suppress(OSError):
            if not self._samples and not sample.is_measurement:
                return
            self._samples.append(sample)
            if 1 < len(self._samples) <= MAX_ROWS:
                with open(self._path, "ab") as out:
                    out.write(rows_of([sample]))
                return
            while len(self._samples) > MAX_ROWS * 3 // 4 and self._width < 1 << 20:
                self._samples = thinned(self._samples, self._width, sample.t - RECENT_SECONDS)
                self._width *= 1 if len(self._samples) <= MAX_ROWS * 3 // 4 else 2
            replace_file(self._path, rows_of(self._samples, header=True))
            os.chmod(self._path, 0o644)


def thinned(samples: Iterable[GpuSample], width: float, until: float) -> List[GpuSample]:
    """`samples` with those before `until` merged into windows of `width` seconds. The first one of each GPU stays: ECC
    errors are counted from there."""
    windows: Dict[Any, List[GpuSample]] = {}
    first = set()
    for at, sample in enumerate(samples):
        is_old = sample.is_measurement and sample.t < until and sample.uuid in first
        windows.setdefault((sample.uuid, sample.t // width) if is_old else at, []).append(sample)
        first.add(sample.uuid)
    return [merged(several) for several in windows.values()]


def merged(samples: Sequence[GpuSample]) -> GpuSample:
    """One row for several of one GPU, in order of time."""

    def most(name: str, choose: Callable[..., Any] = max) -> Any:
        return choose((value for value in (getattr(one, name) for one in samples) if value is not None), default=None)

    uses = [(sample.utilization, sample.seconds) for sample in samples if sample.utilization is not None]
    weight = sum(seconds for _, seconds in uses)
    by_memory = sorted((one for sample in samples for one in sample.processes), key=lambda one: one.memory or 0)
    reasons = dict.fromkeys(reason for one in samples for reason in one.slowed)
    return replace(
        samples[0],
        seconds=round(samples[-1].t - samples[0].t + samples[-1].seconds, 2),
        utilization=round(sum(use * seconds for use, seconds in uses) / weight, 1) if weight else None,
        sm_mhz=most("sm_mhz", min),
        slowed={reason: sum(one.slowed.get(reason, 0.0) for one in samples) for reason in reasons},
        processes=tuple({process.pid: process for process in by_memory}.values()),
        **{name: most(name) for name in ("used", "total", "watts", "celsius", "corrected", "uncorrected")},
    )
