"""What nvidia-smi says, well and ill."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import gpus


def test_eight_gpus_are_a_line(read: Any, data: Any) -> None:
    answers = {
        "gpus": QueryAnswer(0, data("smi-gpus-h100x8.txt")),
        "gpu health": QueryAnswer(0, data("smi-health-h100.txt")),
    }
    [present, health] = read(gpus.facts(HostSpec("h")), answers)
    assert (present.status, present.text) == ("ok", "8 x NVIDIA H100 80GB HBM3 (80 GiB), driver 535.183.01")
    assert (health.status, health.text) == ("ok", "no uncorrected ECC error, no page or row pending")


@pytest.mark.parametrize(
    ("answer", "text", "step"),
    [
        (QueryAnswer(18, "file:smi-mismatch.txt"), "Driver/library version mismatch", "reboot"),
        (QueryAnswer(9, "file:smi-no-driver.txt"), "couldn't communicate", "modprobe nvidia"),
        (QueryAnswer(6, "No devices were found\n"), "No devices were found", "lspci"),
        # What half of it says is not believed: the GPU that fails is the result.
        (QueryAnswer(15, "file:smi-lost.txt"), "Unable to determine the device handle", "fallen off the bus"),
        (QueryAnswer(255, "Failed to initialize NVML: Unknown Error\n"), "Unknown Error", "inside a container"),
        (QueryAnswer(4, "Failed to initialize NVML: Insufficient Permissions\n"), "Insufficient", "/dev/nvidia*"),
        (QueryAnswer(None, "", "no answer from nvidia-smi within 20 s"), "no answer", "stuck"),
    ],
)
def test_every_fault_of_the_driver_has_its_next_step(
    read: Any, data: Any, answer: QueryAnswer, text: str, step: str
) -> None:
    recorded = data(answer.out[5:]) if answer.out.startswith("file:") else answer.out
    [result] = read(gpus.facts(HostSpec("h")), {"gpus": QueryAnswer(answer.code, recorded, answer.err)})
    assert (result.status, text in result.text, step in result.next_step) == ("fault", True, True), result


def test_each_sick_gpu_is_named_with_what_helps(read: Any, data: Any) -> None:
    answers = {
        "gpus": QueryAnswer(0, data("smi-gpus-h100x8.txt")),
        "gpu health": QueryAnswer(0, data("smi-health-sick.txt")),
        "remapped rows": QueryAnswer(0, data("smi-remapped-sick.txt")),
    }
    results = [(f.status, f.text, f.next_step) for f in read(gpus.facts(HostSpec("h")), answers)[1:]]
    reset = "with nobody on it: `sudo nvidia-smi --gpu-reset -i {}`, or reboot"
    pending = "broken memory is taken out only by a reset"
    assert results == [
        ("warning", "GPU 0 (0000:1b:00): 1 uncorrected ECC error since the driver was loaded", reset.format(0)),
        (
            "fault",
            "GPU 1 (0000:43:00): split by MIG, but rows need whole GPUs",
            "with nobody on it: `sudo nvidia-smi -i 1 -mig 0`",
        ),
        ("fault", f"GPU 2 (0000:52:00): {pending}", reset.format(2)),
        ("fault", "GPU 3 (0001:9d:00): a broken row of its memory could not be remapped", "replace it"),
        ("fault", f"GPU 3 (0001:9d:00): {pending}", reset.format(3)),
    ]


def test_a_field_that_a_driver_does_not_know_costs_only_its_own_line(read: Any, data: Any) -> None:
    refused = QueryAnswer(2, 'Field "retired_pages.pending" is not a valid field to query.\n')
    [present, health] = read(
        gpus.facts(HostSpec("h")), {"gpus": QueryAnswer(0, data("smi-gpus-h100x8.txt")), "gpu health": refused}
    )
    assert (present.status, health.status) == ("ok", "unknown")
