"""What the rows of gpu.csv show of a run's GPUs, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.nvidia_smi import read_gpu_samples
from ci_tasks.agent.records import GpuProcessSample, GpuSample
from ci_tasks.records import GpuPeaks, GpuUse
from ci_tasks.results.gpu_samples import by_uuid, gpu_use, since
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "data/uses.json")).fixture()
gpu_use = kept.of(gpu_use)

START = 1_790_937_060.0  # 10:31:00 UTC
GIB = 1024
IDLE = GpuSample(START, 1, "GPU-b", used=500, total=140 * GIB, utilization=0.0, watts=80.0, celsius=30, uncorrected=0)
END = GpuSample(START + 60, ended=True, kernel_log=True)
OURS = GpuProcessSample(10, 61 * GIB, "run", "python3")
THEIRS = GpuProcessSample(4242, 70 * GIB, "other", "vllm")
UNKNOWN = GpuProcessSample(77, 30 * GIB, "unknown", "x")


def series(count: int, first: float = 0, **more: object) -> list[GpuSample]:
    return [replace(IDLE, t=START + first + at, **more) for at in range(count)]  # type: ignore[arg-type]


def use(samples: list[GpuSample], seconds: float = 60, **more: object) -> GpuUse:
    found = gpu_use(samples, uuids=["GPU-b"], ids=[1], ended_at=START + seconds, **more)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_peaks_of_a_gpu() -> None:
    samples = [*series(30), *series(30, 30, used=9000, utilization=50.0, watts=650.0, sm_mhz=1200, celsius=70)]
    assert use([*samples, END]) == GpuUse(
        (GpuPeaks(1, "GPU-b", 140 * GIB, 9000, None, 25.0, 650.0, 70, 1200, {}, None, 0),), 60.0
    )


ODDITIES: dict[str, tuple[list[GpuSample], list[str]]] = {
    "throttled by heat": (series(41, slowed={"thermal, by hardware": 1.0}) + series(19, 41),
        ["GPU 1 was throttled (thermal, by hardware) for 41 s"]),
    "a moment at the power cap": (series(3, slowed={"power cap": 1.0}) + series(57, 3), []),
    "merged lines keep their seconds": ([replace(IDLE, seconds=30.0, slowed={"power cap": 12.0}), *series(30, 30)],
        ["GPU 1 was throttled (power cap) for 12 s"]),
    "memory of a stranger": (series(5) + series(30, 5, processes=(OURS, THEIRS)) + series(25, 35, processes=(OURS,)),
        ["a process that is not this run's (pid 4242, vllm) held 70 GiB on GPU 1 from 10:31:05 UTC to 10:31:35 UTC"]),
    "of one whose owner is not known nothing is said": (series(60, processes=(UNKNOWN,)), []),
    "nor of a small one": (series(60, processes=(replace(THEIRS, memory=500),)), []),
    "one that proves to be the run's": (
        series(5, processes=(replace(OURS, owner="unknown"),)) + series(55, 5, processes=(OURS,)), []),
    "one that proves to be a stranger's": (
        series(5, processes=(replace(THEIRS, owner="unknown"),)) + series(55, 5, processes=(THEIRS,)),
        ["a process that is not this run's (pid 4242, vllm) held 70 GiB on GPU 1 from 10:31:00 UTC to the end"]),
    "the run's own, which is listed some seconds later": (
        series(4, used=21 * GIB) + series(56, 4, used=21 * GIB, processes=(OURS,)), []),
    "ECC errors of this run only": (series(10, uncorrected=5) + series(50, 10, uncorrected=7),
        ["2 uncorrected ECC errors on GPU 1"]),
    "an ECC counter that began anew": (series(10, uncorrected=5) + series(50, 10), []),
    "Xids": ([*series(60), *(replace(IDLE, t=START + 8 + at, xid=79) for at in range(2)), replace(IDLE, xid=31)],
        ["Xid 79 (fallen off the bus) on GPU 1 at 10:31:08 UTC, 2 times",
         "Xid 31 (bad memory access) on GPU 1 at 10:31:00 UTC"]),
    "another GPU's": ([*series(60), *series(60, gpu=0, uuid="GPU-a", slowed={"power brake": 1.0})], []),
}  # fmt: skip


@pytest.mark.parametrize(("samples", "sentences"), ODDITIES.values(), ids=ODDITIES)
def test_oddities_are_what_was_seen(samples: list[GpuSample], sentences: list[str]) -> None:
    found = use([*samples, END])
    assert list(found.oddities) == sentences
    assert not found.not_seen


NOT_SEEN: dict[str, tuple[list[GpuSample], list[str]]] = {
    "all was seen": ([*series(60), END], []),
    "a hole": ([*series(20), *series(20, 40), END], ["no sample of GPU 1 from 10:31:20 UTC to 10:31:40 UTC"]),
    "the end": (
        [*series(20), GpuSample(START + 21, problem="nvidia-smi ended with exit code 15: GPU is lost"), END],
        [
            "the sampling of GPU 1 ended at 10:31:20 UTC, before the run "
            "(nvidia-smi ended with exit code 15: GPU is lost)"
        ],
    ),
    "the kernel's log": ([*series(60), replace(END, kernel_log=False)], ["Xids: the kernel's log was not read"]),
    "the agent was killed": (
        series(20),
        ["the sampling of GPU 1 ended at 10:31:20 UTC, before the run", "Xids: the kernel's log was not read"],
    ),
}


@pytest.mark.parametrize(("samples", "sentences"), NOT_SEEN.values(), ids=NOT_SEEN)
def test_what_was_not_seen_is_said(samples: list[GpuSample], sentences: list[str]) -> None:
    assert list(use(samples).not_seen) == sentences


FULL: dict[str, tuple[list[GpuSample], str]] = {
    "with a stranger": (
        [*series(50), *series(3, 50, used=138 * GIB, processes=(OURS, THEIRS)), *series(7, 53)],
        "GPU 1 used most memory at 10:31:50 UTC: this run 61 GiB, others 70 GiB, 7.0 GiB of no listed process,"
        " of 140 GiB",
    ),
    "of unknown owners": (
        series(60, used=31 * GIB, processes=(UNKNOWN,)),
        "GPU 1 used most memory at 10:31:00 UTC: processes of unknown owners 30 GiB,"
        " 1.0 GiB of no listed process, of 140 GiB",
    ),
    "nobody was listed": (
        series(60, used=139 * GIB),
        "GPU 1 used most memory at 10:31:00 UTC: 139 GiB of 140 GiB; its owners are unknown",
    ),
    "a peak between two samples": (series(60, used=40), ""),
    "long before the end": ([*series(3, -900, used=139 * GIB), *series(60, used=None)], ""),
}


@pytest.mark.parametrize(("samples", "sentence"), FULL.values(), ids=FULL)
def test_out_of_memory_is_explained_by_who_held_what(samples: list[GpuSample], sentence: str) -> None:
    assert use([*samples, END], out_of_memory=True).fullest == sentence
    assert not use([*samples, END]).fullest


# Recorded on an H100: the process that had the GPU before ends when the row gets the lock. Its memory is free within a
# second, and nvidia-smi's list has it for three more.
HANDED_OVER = read_gpu_samples((Path(__file__).parent / "data/gpu-lock-handed-over.csv").read_text())
LOCKED = 1795657284.89


def handed_over(samples: list[GpuSample]) -> GpuUse:
    found = gpu_use(samples, uuids=["GPU-a"], ids=[0], ended_at=1795657295.0, out_of_memory=True)
    assert found is not None
    return found


def test_the_run_that_had_the_lock_before_is_no_other_holder_of_memory() -> None:
    assert "(pid 465, python3) held 13 GiB on GPU 0" in handed_over(HANDED_OVER).strangers[0]
    own = handed_over(since(HANDED_OVER, LOCKED))
    assert (own.oddities, own.gpus[0].used, own.gpus[0].others) == ((), 8719, 0)
    assert own.fullest.endswith(": this run 8.5 GiB, of 80 GiB")


def test_who_shares_a_locked_gpu_is_named() -> None:
    theirs = GpuProcessSample(9, 20 * GIB, "other", "vllm")
    shared = [
        replace(sample, processes=(*sample.processes, theirs)) if sample.gpu == 0 else sample for sample in HANDED_OVER
    ]
    assert ["(pid 9, vllm) held 20 GiB" in line for line in handed_over(since(shared, LOCKED)).strangers] == [True]


def test_a_run_whose_gpus_are_not_known_has_those_with_a_process_of_its_own() -> None:
    other = [replace(sample, uuid="GPU-a", gpu=0) for sample in series(3)]
    samples = [*other, *series(3, processes=(OURS,))]
    assert (list(by_uuid(samples, (), ())), list(by_uuid(samples, (), [0]))) == (["GPU-b"], ["GPU-a"])
    assert gpu_use(other, uuids=(), ids=(), ended_at=None) is None
