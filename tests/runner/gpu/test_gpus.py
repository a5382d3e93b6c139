"""nvidia-smi's words, and what happens where it says nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.runner.gpu import gpus
from ci_tasks.runner.gpu.gpus import App, Gpu

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox

Until = Callable[..., Any]

GPUS = {
    "two": (
        "0, GPU-1a, NVIDIA H200, 580.159.03, 4, 143771\n1, GPU-2b, NVIDIA H200, 580.159.03, 61440, 143771\n",
        [
            Gpu(0, "GPU-1a", "NVIDIA H200", "580.159.03", 4, 143771),
            Gpu(1, "GPU-2b", "NVIDIA H200", "580.159.03", 61440, 143771),
        ],
    ),
    "what the driver does not tell": (
        "0, GPU-1a, NVIDIA A100, 535.1, [N/A], [Insufficient Permissions]\n",
        [Gpu(0, "GPU-1a", "NVIDIA A100", "535.1", None, None)],
    ),
    "not supported": ("0, GPU-1a, Tesla, 470, [Not Supported], 100", [Gpu(0, "GPU-1a", "Tesla", "470", None, 100)]),
    "a name with a comma": ("0, GPU-1a, GB200, rev 2, 580, 1, 2", [Gpu(0, "GPU-1a", "GB200, rev 2", "580", 1, 2)]),
    "one fell off the bus": (
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n1, GPU-2b, H200, 580, 1, 2\n",
        [Gpu(1, "GPU-2b", "H200", "580", 1, 2)],
    ),
    "out of order": (
        "1, b, H200, 580, 1, 2\n0, a, H200, 580, 1, 2\n",
        [Gpu(0, "a", "H200", "580", 1, 2), Gpu(1, "b", "H200", "580", 1, 2)],
    ),
    "none": ("No devices were found\n", []),
    "an error with commas": ("Failed, sadly, to initialize NVML: Driver/library, version, mismatch, 1\n", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "found"), GPUS.values(), ids=GPUS)
def test_gpus_are_read_from_the_answer(text: str, found: list[Gpu]) -> None:
    assert gpus.parse_gpus(text) == found


APPS = {
    "one": ("GPU-1a, 4242, 61440, /usr/bin/python3\n", [App("GPU-1a", 4242, 61440, "/usr/bin/python3")]),
    "memory unknown": ("GPU-1a, 7, [N/A], [Not Found]\n", [App("GPU-1a", 7, None, "[Not Found]")]),
    "a name with commas": ("GPU-1a, 7, 1, a --b=c,d, e\n", [App("GPU-1a", 7, 1, "a --b=c,d, e")]),
    "none": ("No running processes found\n", []),
    "nothing": ("\n", []),
}


@pytest.mark.parametrize(("text", "found"), APPS.values(), ids=APPS)
def test_processes_are_read_from_the_answer(text: str, found: list[App]) -> None:
    assert gpus.parse_apps(text) == found


def _gpu(used: int | None) -> Gpu:
    return Gpu(3, "GPU-1a", "H200", "580", used, 143771)


BUSY = {
    "idle": (_gpu(4), [], None),
    "a driver's own memory": (_gpu(1024), [], None),
    "memory of nobody": (_gpu(2048), [], "2 GiB of its memory held by a process that nvidia-smi does not show"),
    "memory unknown": (_gpu(None), [], None),
    "a process": (_gpu(62000), [App("GPU-1a", 42, 62464, "python")], "61 GiB in use by pid 42 (python)"),
    "a small process": (_gpu(4), [App("GPU-1a", 42, 300, "[Not Found]")], "300 MiB in use by pid 42"),
    "memory known of the GPU only": (_gpu(2048), [App("GPU-1a", 42, None, "x")], "2 GiB in use by pid 42 (x)"),
    "memory not known at all": (_gpu(None), [App("GPU-1a", 42, None, "x")], "memory in use by pid 42 (x)"),
    "two": (_gpu(4), [App("GPU-1a", 1, 10, "a"), App("GPU-1a", 2, 20, "b")], "30 MiB in use by pid 1 (a), pid 2 (b)"),
    "a MIG device of it": (_gpu(4), [App("MIG-GPU-1a/7/0", 1, 10, "a")], "10 MiB in use by pid 1 (a)"),
    "a process of another GPU": (_gpu(4), [App("GPU-1ab", 42, 300, "x")], None),
    "the daemon that shares it": (_gpu(40), [App("GPU-1a", 9, 30, "/usr/bin/nvidia-cuda-mps-server")], None),
}


@pytest.mark.parametrize(("gpu", "apps", "words"), BUSY.values(), ids=BUSY)
def test_a_gpu_is_in_use_by_its_processes_or_its_memory(gpu: Gpu, apps: list[App], words: str | None) -> None:
    assert gpus.busy((gpu,), tuple(apps)) == ({} if words is None else {3: words})


def test_pretended_gpus_are_all_free() -> None:
    sight = gpus.pretended(2)
    assert (sight.ids, gpus.busy(sight.gpus, sight.apps)) == ([0, 1], {})


def test_both_questions_are_asked(box: GpuBox) -> None:
    box.smi(4, 62464, apps="GPU-1, 42, 62464, python\n")
    sight = gpus.look()
    assert (sight.ids, sight.problem) == ([0, 1], "")
    assert gpus.busy(sight.gpus, sight.apps) == {1: "61 GiB in use by pid 42 (python)"}


PROBLEMS = {
    "its own words": ("echo; echo NVIDIA-SMI has failed; exit 9", "NVIDIA-SMI has failed"),
    "no devices": ("echo No devices were found", "No devices were found"),
    "silent": ("exit 3", "nvidia-smi said nothing"),
    "hung": ("sleep 300", "no answer from nvidia-smi within 0.5 s"),
    "hung, its output with a child": ("sleep 300 & sleep 300", "no answer from nvidia-smi within 0.5 s"),
}


@pytest.mark.parametrize(("script", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_keeps_gpus_from_being_seen_is_said(
    box: GpuBox, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(gpus, "PATIENCE", 0.5)
    box.smi_says("#!/bin/sh\n" + script)
    assert gpus.look() == gpus.Sight(problem=words)


def test_without_nvidia_smi_the_program_is_named(monkeypatch: pytest.MonkeyPatch, box: GpuBox) -> None:
    monkeypatch.setenv("PATH", str(box.bin))
    assert gpus.look().problem == "no nvidia-smi on PATH"


def test_a_watch_sees_what_changes_and_forgets_nothing_over_a_failure(box: GpuBox, until: Until) -> None:
    box.smi(4)
    watch = gpus.Watch(0.01)
    watch.start()
    until(lambda: watch.latest is not None)
    box.smi(4, 4)
    until(lambda: watch.latest is not None and watch.latest.ids == [0, 1])
    box.smi_says("#!/bin/sh\necho lost; exit 15")
    until(lambda: watch.problem == "lost")
    assert watch.latest is not None and watch.latest.ids == [0, 1]
    watch.close()
    until(lambda: "nvidia-smi" not in [thread.name for thread in threading.enumerate()])


def test_closing_a_watch_ends_the_program_that_hangs(box: GpuBox, until: Until) -> None:
    box.smi_says(f"#!/bin/sh\necho $$ > {box.path}/pid.new; mv {box.path}/pid.new {box.path}/pid; exec sleep 300")
    watch = gpus.Watch(0.01)
    watch.start()
    until((box.path / "pid").exists)
    watch.close()
    until(lambda: "nvidia-smi" not in [thread.name for thread in threading.enumerate()])
    assert watch.latest is not None and watch.latest.problem
