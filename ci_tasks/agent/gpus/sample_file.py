"""gpu.jsonl while it grows: one line a second for each GPU at first, and never more than MAX_LINES.

The newest minutes stay as they are, since a failure is explained by what was just before it. Older lines are merged
into windows of 2, 4, 8 ... seconds, and keep their peaks.
"""

from __future__ import annotations

import os
import threading
from typing import Container, Dict, Iterable, List, Optional, Sequence, Tuple, TypeVar

from ..files import replace_file
from ..records import GpuSample

MAX_LINES = 10_000  # some 2 MB: 24 hours of 8 GPUs
RECENT_SECONDS = 300.0
LISTED_SECONDS = 5.0  # for which a process counts as being on a GPU after it was listed there
FREED_SECONDS = 1.0  # after which the memory of a process that ended is free
MAX_EVENTS = 500  # lines that are no measurements; a GPU that breaks down writes Xids without end
_MOST_DOUBLINGS = 20  # of the windows' width

_Value = TypeVar("_Value", int, float)


class SampleFile:
    """Appends samples to the file. Whatever happens to it meanwhile, `close` writes it whole, from memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._samples: List[GpuSample] = []
        self._events = 0
        self._width = 1.0
        self._lock = threading.Lock()
        self._closed = False

    def add(self, sample: GpuSample) -> None:
        with self._lock:
            if self._closed or (not sample.is_measurement and not self._has_room_for_event()):
                return
            self._samples.append(sample)
            if len(self._samples) > MAX_LINES:
                self._thin()
                self._write_all()
            else:
                self._append(sample.line())

    def close(self, own: Container[str] = ()) -> None:
        """Nothing is added from here on. Only the GPUs of the UUIDs in `own` stay, where any are known."""
        with self._lock:
            self._closed = True
            samples = self._samples
            if own:
                samples = self._samples = [sample for sample in samples if not sample.uuid or sample.uuid in own]
            if any(sample.is_measurement for sample in samples):
                self._write_all()
                return
            try:
                os.unlink(self._path)
            except OSError:
                pass

    def _has_room_for_event(self) -> bool:
        self._events += 1
        return self._events <= MAX_EVENTS

    def _thin(self) -> None:
        for _ in range(_MOST_DOUBLINGS):
            self._samples = thinned(self._samples, self._width, self._samples[-1].t - RECENT_SECONDS)
            if len(self._samples) <= MAX_LINES * 3 // 4:
                return
            self._width *= 2

    def _append(self, line: str) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            out = os.open(self._path, flags, 0o644)
            try:
                os.write(out, line.encode())
            finally:
                os.close(out)
        except OSError:
            pass  # a full disk, or something else in its place

    def _write_all(self) -> None:
        try:
            replace_file(self._path, "".join(sample.line() for sample in self._samples).encode())
            os.chmod(self._path, 0o644)
        except OSError:
            pass


def thinned(samples: Sequence[GpuSample], width: float, until: float) -> List[GpuSample]:
    """`samples` with those before `until` merged into windows of `width` seconds. The first one of each GPU stays: ECC
    errors are counted from there."""
    windows: Dict[Tuple[str, float], List[GpuSample]] = {}
    others: List[GpuSample] = []
    first = set()
    for sample in samples:
        if not sample.is_measurement or sample.t >= until or sample.uuid not in first:
            first.add(sample.uuid)
            others.append(sample)
        else:
            windows.setdefault((sample.uuid, sample.t // width), []).append(sample)
    return sorted([*others, *map(merged, windows.values())], key=lambda sample: sample.t)


def merged(samples: Sequence[GpuSample]) -> GpuSample:
    """One line for several of one GPU, in order of time."""
    first, last = samples[0], samples[-1]
    slowed: Dict[str, float] = {}
    for sample in samples:
        for reason, seconds in sample.slowed.items():
            slowed[reason] = slowed.get(reason, 0.0) + seconds
    uses = [(sample.utilization, sample.seconds) for sample in samples if sample.utilization is not None]
    weight = sum(seconds for _, seconds in uses)
    processes = {process.pid: process for process in first.processes}
    for sample in samples[1:]:
        for process in sample.processes:
            before = processes.get(process.pid)
            if before is None or (process.memory or 0) >= (before.memory or 0):
                processes[process.pid] = process
    return GpuSample(
        t=first.t,
        gpu=first.gpu,
        uuid=first.uuid,
        seconds=round(last.t - first.t + last.seconds, 2),
        used=_highest(sample.used for sample in samples),
        total=_highest(sample.total for sample in samples),
        utilization=round(sum(use * seconds for use, seconds in uses) / weight, 1) if weight else None,
        watts=_highest(sample.watts for sample in samples),
        celsius=_highest(sample.celsius for sample in samples),
        sm_mhz=min((sample.sm_mhz for sample in samples if sample.sm_mhz is not None), default=None),
        slowed=slowed,
        corrected=_highest(sample.corrected for sample in samples),
        uncorrected=_highest(sample.uncorrected for sample in samples),
        processes=tuple(processes.values()),
    )


def _highest(values: Iterable[Optional[_Value]]) -> Optional[_Value]:
    return max((value for value in values if value is not None), default=None)
