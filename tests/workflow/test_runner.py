"""How many GPUs the texts of a workflow ask for."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.workflow import runner
from ci_tasks.workflow.suite import GENERIC, plain_names
from tests.parts.cases import cases
from tests.parts.entries import describe

CASES = cases("workflow/data/runner.yaml")

# What a label says, by the number of GPUs.
LABELS: dict[int | None, str] = {
    # A number beside the word, or a model and how many of it. What only GitHub knows stands beside it as its name.
    1: "linux-mi-lab-1-gpu-runner gpu_num_1",
    2: "2gpus gpu-x2 nemo-ci-aws-gpu-x2 <needs.pre-flight.outputs.runner_prefix>-gpu-x2 a100x2 rtx4090x2 3090x2 2x4090 "
    "lab-2x-a100 nvidia-a100-80gb-x2",
    4: "4-gpu 4gpu gpu-4 gpu4 linux.rtx.gpu.4 l40sx4 h100-x4",
    8: "8-gpu-h200 L20x8 8xH100",
    16: "nemo-ci-gcp-gpu-x16",
    None: " ".join(
        [
            # The machine has GPUs, and nothing says how many.
            "gpu linux-a100 linux-a100-s2 3090-r1 5080-r1 h100-80gb gpu-t4-4-core 4-core-ubuntu-gpu-t4",
            "linux.8xlarge.nvidia.gpu linux.g5.12xlarge.nvidia.gpu",
            # The number is the model's, the memory's or the processors', or it says two.
            "gpu-4090 rtx-3090-gpu a100-gpu gpu-24gb gpu-8-core gpu-16cpu cpu16x2 linux-4x16 gpu-2-x4",
            # A machine is no row of no GPUs because its number is 0.
            "gpu-0",
            # Versions and word sizes.
            "ubuntu-22.04 ubuntu-latest x86_64 linux-x86-64 linux-x64 linux-x32 win-x64 amd64x2 linux-amd64-cpu16",
            "self-hosted",
        ]
    ),
}


def test_a_label_says_how_many_gpus_its_machine_has() -> None:
    said = {label: runner.gpus_in_label(label) for labels in LABELS.values() for label in labels.split()}
    assert said == {label: count for count, labels in LABELS.items() for label in labels.split()}
    assert runner.gpus_in_label("") is None


@pytest.mark.parametrize(("label", "is_cpu"), CASES["a label may say that the machine has no gpus"])
def test_a_label_may_say_that_the_machine_has_no_gpus(label: str, is_cpu: bool) -> None:
    assert runner.names_cpu(label) == is_cpu


ACCELERATORS = [
    *((label, "AMD GPUs") for label in ("rocm-mi300", "mi300", "mi325x", "linux-mi325-8gpu", "MI300x8", "rocm6")),
    *((label, "AMD GPUs") for label in ("linux.rocm.gpu.4", "gfx942")),
    *((label, "Ascend NPUs") for label in ("ascend", "Ascend910", "linux-arm64-npu-1", "npu", "910b-8")),
    *((label, "Ascend NPUs") for label in ("linux-aarch64-a2b3-8", "linux-aarch64-a3-16", "linux-aarch64-a2-1")),
    # AMD's processors, ARM, and words that only look alike.
    *((label, "") for label in ("linux-amd64-cpu16", "amd", "amd64", "ubuntu-24.04-arm", "linux-aarch64", "mini4")),
    *((label, "") for label in ("L20x8", "a100", "8-gpu-h200", "a2-8", "input", "mi-lab")),
]


@pytest.mark.parametrize(("label", "what"), ACCELERATORS)
def test_machines_without_gpus_of_nvidia_are_named(label: str, what: str) -> None:
    assert runner.other_accelerator(label) == what


COUNTS = [
    (8, 8),
    (0, 0),
    ("4", 4),
    (8.0, 8),
    ("gpu_num_2", 2),
    ("4xA100", 4),
    *((value, None) for value in ("many", "all", True, None, -1, float("inf"), float("nan"))),
    ([0, 1], None),
    ({}, None),
]


@pytest.mark.parametrize(("value", "count"), COUNTS)
def test_a_matrix_value_is_a_number_or_names_one(value: Any, count: int | None) -> None:
    assert runner.gpus_in_value(value) == count


@pytest.mark.parametrize(("script", "count"), CASES["the lock script is told how many"])
def test_the_lock_script_is_told_how_many(script: str, count: int | None) -> None:
    assert runner.gpus_in_script(script) == count


DOCKER_FLAGS = [
    ("2", 2),
    ("0", 0),
    ("count=2", 2),
    ('"device=2,3"', 2),
    ("device=0", 1),
    ("device=GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a", 1),
    *((value, None) for value in ("all", "all,capabilities=utility", "$GPUS", "", "device=")),
]


@pytest.mark.parametrize(("value", "count"), DOCKER_FLAGS)
def test_dockers_flag_says_how_many(value: str, count: int | None) -> None:
    assert runner.gpus_in_docker_flag(value) == count


# -- what labels and rows are called, and what any workflow's matrix entries say to the generic suite ------------------


NAMES = cases("workflow/data/suite.yaml")


@pytest.mark.parametrize(("entry", "gpus"), NAMES["an entry says how many gpus it wants and no test is guessed"])
def test_an_entry_says_how_many_gpus_it_wants_and_no_test_is_guessed(entry: dict[str, Any], gpus: int | None) -> None:
    assert GENERIC.describe(entry) == (None, "", gpus)


# -- names -------------------------------------------------------------------------------------------------------------


# None where names cannot be known without evaluating
@pytest.mark.parametrize(("matrix", "names"), NAMES["plain matrices are named and others are not guessed"])
def test_plain_matrices_are_named_and_others_are_not_guessed(matrix: Any, names: list[str] | None) -> None:
    assert plain_names("label", matrix, describe) == names


def test_a_name_is_one_line_that_a_terminal_may_have() -> None:
    assert plain_names("l", {"a": ["\x1b[31mred", "two\nlines"]}, describe) == ["l[�[31mred]", "l[two lines]"]
    assert plain_names("l", {"info": [{"test_file": "test_\x1b]0;x\x07.py"}]}, describe) == ["�]0;x�"]
