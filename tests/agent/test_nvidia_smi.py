"""nvidia-smi's words, and what happens where it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import nvidia_smi
from ci_tasks.agent.nvidia_smi import Gpu, GpuProcess, Xid
from ci_tasks.agent.records import GpuSample

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

Until = Callable[..., Any]

GPUS = {
    "two": (
        "0, GPU-1a, NVIDIA H200, 580.159.03, 4, 143771\n1, GPU-2b, NVIDIA H200, 580.159.03, 61440, 143771\n",
        [("GPU-1a", "NVIDIA H200", "580.159.03", 4, 143771), ("GPU-2b", "NVIDIA H200", "580.159.03", 61440, 143771)],
    ),
    "what the driver does not tell": (
        "0, GPU-1a, NVIDIA A100, 535.1, [N/A], [Insufficient Permissions]\n",
        [("GPU-1a", "NVIDIA A100", "535.1", None, None)],
    ),
    "a name with a comma": ("0, GPU-1a, GB200, rev 2, 580, 1, 2", [("GPU-1a", "GB200, rev 2", "580", 1, 2)]),
    "out of order": ("1, b, x, 5, 1, 2\n0, a, x, 5, 1, 2\n", [("a", "x", "5", 1, 2), ("b", "x", "5", 1, 2)]),
    "one fell off the bus": (
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n0, GPU-2b, H200, 580, 1, 2\n",
        [("GPU-2b", "H200", "580", 1, 2)],
    ),
    "none": ("No devices were found\n", []),
    "an error with commas": ("Failed, sadly, to initialize NVML: Driver/library, version, mismatch, 1\n", []),
}


@pytest.mark.parametrize(("text", "gpus"), GPUS.values(), ids=GPUS)
def test_gpus_are_read_from_the_answer(text: str, gpus: list[Any]) -> None:
    assert nvidia_smi.parse_gpus(text) == [Gpu(at, *values) for at, values in enumerate(gpus)]


APPS = {
    "one": ("GPU-1a, 4242, 61440, /usr/bin/python3\n", [GpuProcess("GPU-1a", 4242, 61440, "/usr/bin/python3")]),
    "memory unknown": ("GPU-1a, 7, [N/A], [Not Found]\n", [GpuProcess("GPU-1a", 7, None, "[Not Found]")]),
    "a name with commas": ("GPU-1a, 7, 1, a --b=c,d, e\n", [GpuProcess("GPU-1a", 7, 1, "a --b=c,d, e")]),
    "none": ("No running processes found\n", []),
    "a digit that is no number": ("GPU-1a, \u00b2, 1, python\n", []),
    "nothing": ("\n", []),
}


@pytest.mark.parametrize(("text", "processes"), APPS.values(), ids=APPS)
def test_processes_are_read_from_the_answer(text: str, processes: list[GpuProcess]) -> None:
    assert nvidia_smi.parse_apps(text) == processes


def _gpu(used: int | None) -> Gpu:
    return Gpu(3, "GPU-1a", "H200", "580", used, 143771)


BUSY = {
    "idle": (_gpu(4), [], None),
    "a driver's own memory": (_gpu(1024), [], None),
    "memory of nobody": (_gpu(2048), [], "2 GiB of its memory held by a process that nvidia-smi does not show"),
    "memory unknown": (_gpu(None), [], None),
    "a process": (_gpu(62000), [GpuProcess("GPU-1a", 42, 62464, "python")], "61 GiB in use by pid 42 (python)"),
    "a small process": (_gpu(4), [GpuProcess("GPU-1a", 42, 300, "[Not Found]")], "300 MiB in use by pid 42"),
    "two": (
        _gpu(4),
        [GpuProcess("GPU-1a", 1, 10, "a"), GpuProcess("GPU-1a", 2, 20, "b")],
        "30 MiB in use by pid 1 (a), pid 2 (b)",
    ),
    "a MIG device of it": (_gpu(4), [GpuProcess("MIG-GPU-1a/7/0", 1, 10, "a")], "10 MiB in use by pid 1 (a)"),
    "the daemon that shares it": (_gpu(40), [GpuProcess("GPU-1a", 9, 30, "/usr/bin/nvidia-cuda-mps-server")], None),
}


@pytest.mark.parametrize(("gpu", "apps", "reason"), BUSY.values(), ids=BUSY)
def test_a_gpu_is_in_use_by_its_processes_or_its_memory(gpu: Gpu, apps: list[GpuProcess], reason: str | None) -> None:
    assert nvidia_smi.gpus_in_use((gpu,), tuple(apps)) == ({} if reason is None else {3: reason})


PROBLEMS = {
    "its own words": ("echo; echo NVIDIA-SMI has failed; exit 9", "NVIDIA-SMI has failed"),
    "no devices": ("echo No devices were found", "No devices were found"),
    "silent": ("exit 3", "no output"),
    "hung": ("sleep 300", "no answer from nvidia-smi within 0.5 s"),
    "hung, its output with a child": ("sleep 300 & sleep 300", "no answer from nvidia-smi within 0.5 s"),
}


@pytest.mark.parametrize(("script", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_failure_of_nvidia_smi_is_the_problem(
    gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.5)
    gpu_host.smi_says("#!/bin/sh\n" + script)
    assert nvidia_smi.query_gpus() == nvidia_smi.GpuSnapshot(problem=problem)
    (gpu_host.bin / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(gpu_host.bin))
    assert nvidia_smi.query_gpus().problem == "no nvidia-smi on PATH"


HOT = ("power cap", "thermal, by hardware")
LINES = {
    "all values": (
        "1, GPU-b, 61440, 143771, 00000000:1B:00.0, 97, 651.20, 61, 1755, 0x0000000000000044, 12, 2",
        GpuSample(100.0, 1, "GPU-b", 2.0, 61440, 143771, 97, 651.2, 61, 1755, dict.fromkeys(HOT, 2.0), 12, 2),
    ),
    "what the GPU does not have": (
        "0, GPU-a, 4, [N/A], 00000000:1B:00.0, [N/A], [Not Supported], 30, [N/A], [N/A], [N/A], [N/A]",
        GpuSample(100.0, 0, "GPU-a", 2.0, used=4, celsius=30),
    ),
    "another line": ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", None),
    "half a line": ("1, GPU-b, 61440", None),
    "a huge number": (
        f"0, GPU-a, {'9' * 400}, 143771, 00000000:1B:00.0, 97, 1e999, 61, 1755, 0x0, 0, 0",
        GpuSample(100.0, 0, "GPU-a", 2.0, None, 143771, 97, None, 61, 1755, {}, 0, 0),
    ),
}


@pytest.mark.parametrize(("line", "sample"), LINES.values(), ids=LINES)
def test_a_line_is_a_sample_of_one_gpu(line: str, sample: GpuSample | None) -> None:
    assert nvidia_smi.parse_samples(line, 100.0) == ([(sample, "0000:1b:00")] if sample else [])


MASKS = [("0x0000000000000000", []), ("0x0000000000000001", []), ("0x0000000000000008", ["hardware slowdown"]),
         ("0x0000000000000048", ["thermal, by hardware"]), ("[N/A]", []), ("", [])]  # fmt: skip


def test_an_idle_gpu_is_not_throttled_and_a_slowdown_by_heat_is_said_once() -> None:
    assert [(mask, nvidia_smi.slowdowns(mask)) for mask, _ in MASKS] == MASKS


def test_an_xid_has_its_gpu_and_its_time_as_far_as_the_kernels_log_says_them() -> None:
    lines = "2026-11-20T12:11:12,13+02:00 NVRM: Xid (PCI:0000:1B:00): 79, pid=1\n[12.3] NVRM: Xid (0000:43:00.0): 48"
    assert nvidia_smi.parse_xids(lines) == [
        Xid(79, "0000:1b:00", "2026-11-20T12:11:12", 1795169472.0), Xid(48, "0000:43:00", "")
    ]  # fmt: skip
