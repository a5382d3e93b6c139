"""gpu.csv → what a run's GPUs did: peaks, oddities, who held the memory. It claims only what was sampled, and says when
there was no sample. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice, pairwise

from ci_tasks.agent.nvidia_smi import merged
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import GpuProcessSample, GpuSample
from ci_tasks.errors import counted
from ci_tasks.records import GpuPeaks, GpuUse

OUT_OF_MEMORY = ("cuda_oom", "gpu_memory")  # causes of a triage
_MIB_PER_GIB = 1024
_NOTABLE_MIB = 1024  # an idle GPU, and each process's context, hold some hundred
_POWER_CAP_SECONDS = 5.0  # a GPU at full load touches it now and then
_GAP_SECONDS = 10.0  # between two samples, beside the time that the first stands for
_FULLEST_SECONDS = 300.0  # before the end, in which lines are a second each
_MOST_SENTENCES = 20  # of each kind
_LISTED_SECONDS = 5.0  # for which nvidia-smi may list a process that ended
_FREED_SECONDS = 1.0  # after which the memory of a process that ended is free
_OWNERS = {"run": "this run", "other": "others", "unknown": "processes of unknown owners"}
# A program's own mistake causes these; the GPU is well.
PROGRAM_ERRORS = {
    13: "graphics exception", 31: "bad memory access", 43: "program stopped", 45: "program ended by force",
}  # fmt: skip
HARDWARE_ERRORS = {
    48: "double-bit ECC error", 63: "memory row or page retired", 64: "broken memory could not be retired",
    74: "NVLink error", 79: "fallen off the bus", 92: "many corrected ECC errors", 94: "contained ECC error",
    95: "uncontained ECC error", 119: "its firmware (GSP) does not answer", 120: "its firmware (GSP) failed",
    140: "unrecovered ECC error", 149: "NVLink error",
}  # fmt: skip


def gpu_use(
    samples: Sequence[GpuSample],
    *,
    uuids: Collection[str],
    ids: Collection[int],
    ended_at: float | None,
    out_of_memory: bool = False,
) -> GpuUse | None:
    """What the samples show of the GPUs with these UUIDs, or numbers; None if they show nothing of them."""
    gpus = [_Gpu(own) for own in by_uuid(samples, uuids, ids).values()]
    if not gpus:
        return None
    strangers = list(islice((sentence for gpu in gpus for sentence in gpu.strangers()), _MOST_SENTENCES))
    faults = [sentence for gpu in gpus for sentence in gpu.faults()]
    oddities = [*strangers, *faults, *_xids(samples, {gpu.samples[0].uuid for gpu in gpus})]
    return GpuUse(
        gpus=tuple(gpu.peaks() for gpu in gpus),
        seconds=round(max(gpu.end for gpu in gpus) - min(gpu.samples[0].t for gpu in gpus), 1),
        oddities=tuple(oddities[: 3 * _MOST_SENTENCES]),
        strangers=tuple(strangers),
        not_seen=tuple(islice(_not_seen(samples, gpus, ended_at), _MOST_SENTENCES)),
        fullest=_fullest(gpus, ended_at) if out_of_memory else "",
    )


def by_uuid(samples: Iterable[GpuSample], uuids: Collection[str], ids: Collection[int]) -> dict[str, list[GpuSample]]:
    """The measurements of a run's GPUs by UUID, each in order of time. Where neither UUIDs nor numbers are known, its
    GPUs are those with a process of its own."""
    measured = sorted((sample for sample in samples if sample.is_measurement), key=lambda sample: sample.t)
    if not uuids and not ids:
        uuids = {one.uuid for one in measured if any(process.owner == "run" for process in one.processes)}
        measured = [one for one in measured if one.uuid in uuids]
    by_gpu: dict[str, list[GpuSample]] = {}
    for sample in sorted(measured, key=lambda sample: sample.gpu or 0):
        if sample.uuid in uuids if uuids else sample.gpu in ids:
            by_gpu.setdefault(sample.uuid, []).append(sample)
    return by_gpu


def since(samples: Iterable[GpuSample], locked_at: float) -> list[GpuSample]:
    """Without what the GPUs' last user had: its memory takes a moment to be free, and its processes are in the list of
    nvidia-smi for some seconds."""
    fresh = locked_at + _LISTED_SECONDS
    return [
        replace(sample, processes=tuple(one for one in sample.processes if sample.t >= fresh or one.owner != "other"))
        for sample in samples
        if sample.t >= locked_at + _FREED_SECONDS or not sample.is_measurement
    ]


@dataclass(frozen=True)
class _Holder:
    """A process with memory on a GPU: from when until when it was listed, and its peak in MiB."""

    process: GpuProcessSample
    first: float
    last: float
    most: int


class _Gpu:
    """The samples of one GPU, and the processes that were listed on it."""

    def __init__(self, samples: Sequence[GpuSample]) -> None:
        self.samples, self.number = samples, samples[0].gpu or 0
        self.end = max(sample.t + sample.seconds for sample in samples)
        self.holders: dict[int, _Holder] = {}
        for sample in samples:
            for process in sample.processes:
                last, memory = sample.t + sample.seconds, process.memory or 0
                before = self.holders.get(process.pid) or _Holder(process, sample.t, last, memory)
                # Whose one is may be known only after some seconds: the latest answer counts.
                known = before.process if process.owner == "unknown" else process
                self.holders[process.pid] = _Holder(known, before.first, last, max(before.most, memory))

    def memory(self, sample: GpuSample) -> dict[str, int]:
        """MiB by owner."""
        memory = dict.fromkeys(_OWNERS, 0)
        for process in sample.processes:
            memory[self.holders[process.pid].process.owner] += process.memory or 0
        return memory

    def peaks(self) -> GpuPeaks:
        whole = merged(self.samples)
        others = max(self.memory(sample)["other"] for sample in self.samples) if self.holders else None
        slowed = {reason: round(seconds, 1) for reason, seconds in whole.slowed.items()}
        errors = [_increase(getattr(one, kind) for one in self.samples) for kind in ("corrected", "uncorrected")]
        return GpuPeaks(
            self.number, whole.uuid, whole.total, whole.used, others, whole.utilization, whole.watts, whole.celsius,
            whole.sm_mhz, slowed, *errors,
        )  # fmt: skip

    def strangers(self) -> Iterator[str]:
        for holder in self.holders.values():
            if holder.process.owner == "other" and holder.most >= _NOTABLE_MIB:
                ended = holder.last < self.samples[-1].t - _GAP_SECONDS
                until = f"to {_clock(holder.last)}" if ended else "to the end"
                who = ", ".join(filter(None, [f"pid {holder.process.pid}", holder.process.name]))
                held = f"held {_gib(holder.most)} on GPU {self.number} from {_clock(holder.first)} {until}"
                yield f"a process that is not this run's ({who}) {held}"

    def faults(self) -> Iterator[str]:
        for reason, seconds in merged(self.samples).slowed.items():
            if seconds >= (_POWER_CAP_SECONDS if reason == "power cap" else 0.5):
                yield f"GPU {self.number} was throttled ({reason}) for {seconds:.0f} s"
        if errors := _increase(sample.uncorrected for sample in self.samples):
            yield f"{counted(errors, 'uncorrected ECC error')} on GPU {self.number}"


def _xids(samples: Iterable[GpuSample], own: Collection[str]) -> Iterator[str]:
    counts: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        if sample.xid is not None and sample.gpu is not None and sample.uuid in own:
            counts.setdefault((sample.xid, sample.gpu), []).append(sample.t)
    for (number, gpu), times in counts.items():
        what = HARDWARE_ERRORS.get(number) or PROGRAM_ERRORS.get(number)
        often = f", {len(times)} times" if len(times) > 1 else ""
        yield f"Xid {number}{f' ({what})' if what else ''} on GPU {gpu} at {_clock(min(times))}{often}"


def _not_seen(samples: Sequence[GpuSample], gpus: Sequence[_Gpu], ended_at: float | None) -> Iterator[str]:
    problems = "; ".join(dict.fromkeys(sample.problem for sample in samples if sample.problem))
    why = f" ({problems[:200]})" if problems else ""
    for gpu in gpus:
        for before, after in pairwise(gpu.samples):
            if after.t - before.t - before.seconds > _GAP_SECONDS:
                start, end = _clock(before.t + before.seconds), _clock(after.t)
                yield f"no sample of GPU {gpu.number} from {start} to {end}{why}"
        if ended_at is not None and ended_at - gpu.end > _GAP_SECONDS:
            yield f"the sampling of GPU {gpu.number} ended at {_clock(gpu.end)}, before the run{why}"
    if not any(sample.ended and sample.kernel_log for sample in samples):
        yield "Xids: the kernel's log was not read"


def _fullest(gpus: Sequence[_Gpu], ended_at: float | None) -> str:
    """`GPU 1 used most memory at 10:32:08 UTC: this run 61 GiB, others 70 GiB, of 140 GiB`."""
    ends = {gpu.number: gpu.samples[-1].t if ended_at is None else ended_at for gpu in gpus}
    late = [(gpu, one) for gpu in gpus for one in gpu.samples if 0 <= ends[gpu.number] - one.t <= _FULLEST_SECONDS]
    if not late:
        return ""
    gpu, sample = max(late, key=lambda pair: (pair[1].used or 0) / (pair[1].total or 1 << 40))
    if (sample.used or 0) < _NOTABLE_MIB:  # a sample a second does not show why it was full
        return ""
    head = f"GPU {gpu.number} used most memory at {_clock(sample.t)}"
    total = f" of {_gib(sample.total)}" if sample.total else ""
    memory = gpu.memory(sample)
    if not any(memory.values()):
        return f"{head}: {_gib(sample.used or 0)}{total}; its owners are unknown"
    parts = [f"{_OWNERS[owner]} {_gib(mib)}" for owner, mib in memory.items() if mib]
    rest = (sample.used or 0) - sum(memory.values())
    parts += [f"{_gib(rest)} of no listed process"] if rest >= _NOTABLE_MIB else []
    return f"{head}: {', '.join(parts)},{total}"


def _increase(values: Iterable[int | None]) -> int | None:
    """By how much a counter has grown. One that was reset meanwhile counts from there."""
    known = [value for value in values if value is not None]
    return sum(max(0, after - before) for before, after in pairwise(known)) if known else None


def _gib(mib: float) -> str:
    return f"{mib / _MIB_PER_GIB:.0f} GiB" if mib >= 10 * _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:.1f} GiB"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S} UTC"
