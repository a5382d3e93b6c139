"""gpu.csv → what a run's GPUs did: peaks, oddities, who held the memory. Only what was sampled is claimed, and where
there was no sample is said. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise

from ci_tasks.agent.gpus.nvidia_smi import HARDWARE_ERRORS, PROGRAM_ERRORS
from ci_tasks.agent.gpus.samples import FREED_SECONDS, LISTED_SECONDS, merged
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import GpuSample
from ci_tasks.errors import counted
from ci_tasks.records import GpuPeaks, GpuUse

OUT_OF_MEMORY = ("cuda_oom", "gpu_memory")  # causes of a triage
_MIB_PER_GIB = 1024
_NOTABLE_MIB = 1024  # an idle GPU, and each process's context, hold some hundred
_POWER_CAP = "power cap"
_POWER_CAP_SECONDS = 5.0  # a GPU at full load touches it now and then
_GAP_SECONDS = 10.0  # between two samples, beside the time that the first stands for
_FULLEST_SECONDS = 300.0  # before the end, in which lines are a second each
_MOST_SENTENCES = 20  # of each kind


@dataclass(frozen=True)
class _Holder:
    """A process with memory on a GPU: from when until when it was listed, and its peak in MiB."""

    pid: int
    name: str
    owner: str
    first: float
    last: float
    most: int


def gpu_use(
    samples: Sequence[GpuSample],
    *,
    uuids: Collection[str],
    ids: Collection[int],
    ended_at: float | None,
    out_of_memory: bool = False,
) -> GpuUse | None:
    """What the samples show of the GPUs with these UUIDs, or numbers; None where they show nothing of them."""
    by_gpu = own_samples(samples, uuids, ids)
    if not by_gpu:
        return None
    holders = {uuid: _holders(several) for uuid, several in by_gpu.items()}
    shared = [sentence for uuid, several in by_gpu.items() for sentence in _strangers(several, holders[uuid])]
    strangers = tuple(shared[:_MOST_SENTENCES])
    oddities = [
        *strangers,
        *(sentence for uuid, several in by_gpu.items() for sentence in _used_before(several, holders[uuid])),
        *(sentence for several in by_gpu.values() for sentence in _slowdowns(several)),
        *(sentence for several in by_gpu.values() for sentence in _ecc_errors(several)),
        *_xids(samples, by_gpu),
    ]
    times = [sample for several in by_gpu.values() for sample in several]
    return GpuUse(
        gpus=tuple(_peaks(several, holders[uuid]) for uuid, several in by_gpu.items()),
        seconds=round(max(one.t + one.seconds for one in times) - min(one.t for one in times), 1),
        oddities=tuple(oddities[: 3 * _MOST_SENTENCES]),
        strangers=strangers,
        not_seen=tuple(_not_seen(samples, by_gpu, ended_at)[:_MOST_SENTENCES]),
        fullest=_fullest(by_gpu, holders, ended_at) if out_of_memory else "",
    )


def own_samples(
    samples: Iterable[GpuSample], uuids: Collection[str], ids: Collection[int]
) -> dict[str, list[GpuSample]]:
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


def by_clock(samples: Iterable[GpuSample], ahead: float) -> list[GpuSample]:
    return [replace(sample, t=max(0.0, sample.t - ahead)) if ahead else sample for sample in samples]


def since(samples: Iterable[GpuSample], locked_at: float) -> list[GpuSample]:
    """Without what the GPUs' last user had: its memory takes a moment to be free, and its processes are in the list of
    nvidia-smi for some seconds."""
    fresh = locked_at + LISTED_SECONDS
    return [
        replace(sample, processes=tuple(one for one in sample.processes if sample.t >= fresh or one.owner != "other"))
        for sample in samples
        if sample.t >= locked_at + FREED_SECONDS or not sample.is_measurement
    ]


def gib(mib: float) -> str:
    return f"{mib / _MIB_PER_GIB:.0f} GiB" if mib >= 10 * _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:.1f} GiB"


def _peaks(several: Sequence[GpuSample], holders: Sequence[_Holder]) -> GpuPeaks:
    whole = merged(several)
    return GpuPeaks(
        gpu=whole.gpu or 0,
        uuid=whole.uuid,
        total=whole.total,
        used=whole.used,
        others=max((_memory_of(sample, holders)["other"] for sample in several), default=0) if holders else None,
        utilization=whole.utilization,
        watts=whole.watts,
        celsius=whole.celsius,
        sm_mhz=whole.sm_mhz,
        slowed={reason: round(seconds, 1) for reason, seconds in whole.slowed.items()},
        corrected=_increase([sample.corrected for sample in several]),
        uncorrected=_increase([sample.uncorrected for sample in several]),
    )


def _holders(several: Sequence[GpuSample]) -> list[_Holder]:
    """Every process that was listed. Whose one is may be known only after some seconds: the latest answer counts."""
    found: dict[int, _Holder] = {}
    for sample in several:
        for process in sample.processes:
            before = found.get(process.pid)
            if before is None:
                found[process.pid] = _Holder(
                    process.pid, process.name, process.owner, sample.t, sample.t + sample.seconds, process.memory or 0
                )
                continue
            owner = process.owner if process.owner != "unknown" else before.owner
            most, last = max(before.most, process.memory or 0), sample.t + sample.seconds
            found[process.pid] = replace(before, owner=owner, last=last, most=most)
    return list(found.values())


def _strangers(several: Sequence[GpuSample], holders: Sequence[_Holder]) -> list[str]:
    gpu, end = several[0].gpu, several[-1].t
    sentences = []
    for holder in holders:
        if holder.owner == "other" and holder.most >= _NOTABLE_MIB:
            until = f" to {_clock(holder.last)}" if holder.last < end - _GAP_SECONDS else " to the end"
            who = f"pid {holder.pid}{f', {holder.name}' if holder.name else ''}"
            held = f"held {gib(holder.most)} on GPU {gpu} from {_clock(holder.first)}{until}"
            sentences.append(f"a process that is not this run's ({who}) {held}")
    return sentences


def _used_before(several: Sequence[GpuSample], holders: Sequence[_Holder]) -> list[str]:
    """Memory in use when the sampling began, of a GPU on which no other's process is shown."""
    first = several[0]
    # A merged line may have memory of the row, and a process is listed only some seconds after it has allocated.
    listed = first.t + 2 * LISTED_SECONDS
    is_own = first.seconds > 1 or any(holder.owner != "other" and holder.first <= listed for holder in holders)
    if (first.used or 0) < _NOTABLE_MIB or is_own or _strangers(several, holders):
        return []
    return [f"GPU {first.gpu} had {gib(first.used or 0)} in use at its first sample ({_clock(first.t)})"]


def _slowdowns(several: Sequence[GpuSample]) -> list[str]:
    return [
        f"GPU {several[0].gpu} was throttled ({reason}) for {length:.0f} s"
        for reason, length in merged(several).slowed.items()
        if length >= (_POWER_CAP_SECONDS if reason == _POWER_CAP else 0.5)
    ]


def _ecc_errors(several: Sequence[GpuSample]) -> list[str]:
    errors = _increase([sample.uncorrected for sample in several])
    return [f"{counted(errors, 'uncorrected ECC error')} on GPU {several[0].gpu}"] if errors else []


def _xids(samples: Iterable[GpuSample], own: Collection[str]) -> list[str]:
    counts: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        if sample.xid is not None and sample.gpu is not None and sample.uuid in own:
            counts.setdefault((sample.xid, sample.gpu), []).append(sample.t)
    sentences = []
    for (number, gpu), times in counts.items():
        what = HARDWARE_ERRORS.get(number) or PROGRAM_ERRORS.get(number)
        often = f", {len(times)} times" if len(times) > 1 else ""
        words = f"Xid {number}{f' ({what})' if what else ''}"
        sentences.append(f"{words} on GPU {gpu} at {_clock(min(times))}{often}")
    return sentences


def _not_seen(
    samples: Sequence[GpuSample], by_gpu: Mapping[str, Sequence[GpuSample]], ended_at: float | None
) -> list[str]:
    gaps: dict[tuple[str, str], list[int]] = {}
    for several in by_gpu.values():
        for before, after in pairwise(several):
            if after.t - before.t - before.seconds > _GAP_SECONDS:
                span = _clock(before.t + before.seconds), _clock(after.t)
                gaps.setdefault(span, []).append(before.gpu or 0)
    sentences = [f"no sample of {_gpus(gpus)} from {start} to {end}" for (start, end), gpus in gaps.items()]
    problems = "; ".join(dict.fromkeys(sample.problem for sample in samples if sample.problem))
    why = f" ({problems[:200]})" if problems else ""
    ends: dict[str, list[int]] = {}
    for several in by_gpu.values():
        last = several[-1].t + several[-1].seconds
        if ended_at is not None and ended_at - last > _GAP_SECONDS:
            ends.setdefault(_clock(last), []).append(several[0].gpu or 0)
    sentences += [f"the sampling of {_gpus(gpus)} ended at {last}, before the run{why}" for last, gpus in ends.items()]
    if not any(sample.ended and sample.kernel_log for sample in samples):
        sentences.append("Xids: the kernel's log was not read")
    return sentences


def _fullest(
    by_gpu: Mapping[str, Sequence[GpuSample]], holders: Mapping[str, Sequence[_Holder]], ended_at: float | None
) -> str:
    """`GPU 1 was fullest at 10:32:08 UTC: this run 61 GiB, others 70 GiB, of 140 GiB`."""
    best: tuple[float, GpuSample] | None = None
    for several in by_gpu.values():
        end = ended_at if ended_at is not None else several[-1].t
        for sample in several:
            share = (sample.used or 0) / (sample.total or 1 << 40)
            if end - _FULLEST_SECONDS <= sample.t <= end and (best is None or share > best[0]):
                best = share, sample
    if best is None or (best[1].used or 0) < _NOTABLE_MIB:  # a sample a second does not show why it was full
        return ""
    sample = best[1]
    total = f" of {gib(sample.total)}" if sample.total else ""
    head = f"GPU {sample.gpu} was fullest at {_clock(sample.t)}"
    memory = _memory_of(sample, holders[sample.uuid])
    if not any(memory.values()):
        return f"{head}: {gib(sample.used or 0)}{total}; who held it was not seen"
    words = {"run": "this run", "other": "others", "unknown": "processes of unknown owners"}
    parts = [f"{words[owner]} {gib(mib)}" for owner, mib in memory.items() if mib]
    rest = (sample.used or 0) - sum(memory.values())
    parts += [f"{gib(rest)} of no process that was listed"] if rest >= _NOTABLE_MIB else []
    return f"{head}: {', '.join(parts)},{total}"


def _memory_of(sample: GpuSample, holders: Iterable[_Holder]) -> dict[str, int]:
    owners = {holder.pid: holder.owner for holder in holders}
    memory = {"run": 0, "other": 0, "unknown": 0}
    for process in sample.processes:
        memory[owners.get(process.pid, process.owner)] += process.memory or 0
    return memory


def _increase(values: Iterable[int | None]) -> int | None:
    """By how much a counter has grown. One that was reset meanwhile counts from there."""
    known = [value for value in values if value is not None]
    return sum(max(0, after - before) for before, after in pairwise(known)) if known else None


def _gpus(numbers: Sequence[int]) -> str:
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S} UTC"
