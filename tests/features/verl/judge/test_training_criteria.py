"""Single criteria: runs that end well and still show no pass, and runs that end badly for what is not the change's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ci_tasks.features.verl.judge.verdict_of_training import RunEnd
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from tests.features.verl.judge.conftest import LORA, built

if TYPE_CHECKING:
    from tests.features.verl.judge.conftest import Writer

Edit = Callable[[Training, list[str]], Sequence[str]]
BRIDGE_FRAME = '  File "/work/Megatron-Bridge/src/megatron/bridge/peft/lora.py", line 221, in transform'
TRACEBACK = ("(WorkerDict pid=90) Traceback (most recent call last):", f"(WorkerDict pid=90) {BRIDGE_FRAME}")
DEATH = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
FIRST_START = "(TaskRunner pid=71) Checkpoint tracker file does not exist: /c/latest_checkpointed_iteration.txt"
ROLLOUT = (
    "Traceback (most recent call last):",
    '  File "/v/vllm/v1/engine/core.py", line 9, in init',
    "RuntimeError: Engine core initialization failed. See root cause above.",
)


def before(*extra: str) -> Edit:
    return lambda training, steps: [*built(training), *LORA, *extra, *steps]


def without(text: str) -> Edit:
    return lambda training, steps: [line for line in (*built(training), *LORA, *steps) if text not in line]


def changed(old: str, new: str) -> Edit:
    return lambda training, steps: [line.replace(old, new) for line in (*built(training), *LORA, *steps)]


# What the log of a training with exit code 0 and all of its steps has else; level; result; the criterion and outcome.
EXIT_0: list[tuple[str, Edit, int, str, str]] = [
    (
        "a swallowed traceback in Bridge",
        before(*TRACEBACK, "(WorkerDict pid=90) KeyError: 'linear_qkv'"),
        0,
        "Fail",
        "no exception in Bridge-managed construction or a step: KeyError: 'linear_qkv' (line",
    ),
    (
        "a worker that died before the end",
        before(DEATH),
        0,
        "Not proven",
        "no exception in Bridge-managed construction or a step: the death of a process, after",
    ),
    (
        "out of memory, swallowed",
        before("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        0,
        "Not proven",
        "GPU memory, after Bridge-managed construction began: torch.OutOfMemoryError",
    ),
    (
        "an illegal access of memory, swallowed",
        before("(WorkerDict pid=90) torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        0,
        "Not proven",
        "CUDA error: an illegal memory access",
    ),
    (
        "a failed task of Ray's, swallowed",
        before("ray.exceptions.RayTaskError(KeyError): ray::WorkerDict.actor_rollout_init_model() (pid=9)"),
        0,
        "Not proven",
        "RayTaskError(KeyError)",
    ),
    (
        "an optional import that Bridge does without",
        before(
            "(WorkerDict pid=90) Import of X from transformer_engine failed with: Traceback (most recent call last):",
            f"(WorkerDict pid=90) {BRIDGE_FRAME.replace('transform', 'safe_import_from')}",
            "(WorkerDict pid=90) AttributeError: module 'transformer_engine' has no attribute 'X'",
        ),
        0,
        "Pass",
        "Level 0 passed",
    ),
    ("no line of LoRA", without("Adapter"), 0, "Not proven", "LoRA with trainable parameters: nothing shows"),
    ("nothing trainable", changed("8,192", "0"), 0, "Fail", "LoRA with trainable parameters: 0 trainable"),
    ("NaN in the loss", changed("actor/pg_loss:0.5", "actor/pg_loss:nan"), 0, "Fail", "actor/pg_loss is nan at step 1"),
    ("no word of a wrapper", without("Setting up"), 0, "Not proven", "model wrapper: nothing shows"),
    (
        "DDP where Megatron-FSDP was asked for",
        changed("use_megatron_fsdp=True", "use_megatron_fsdp=False"),
        3,
        "Fail",
        "model wrapper: DDP was built, not Megatron-FSDP",
    ),
    ("a model past Megatron-Bridge", before("TF config: x"), 0, "Fail", "non-vanilla Bridge: a model was built past"),
]


@pytest.mark.parametrize(("_", "edit", "level", "result", "why"), EXIT_0, ids=[case[0] for case in EXIT_0])
def test_exit_code_0_and_all_steps_are_not_enough(
    _: str, edit: Edit, level: int, result: str, why: str, writer: Writer
) -> None:
    request = replace(writer.request, level=level)
    log = writer.preflight()
    for training in trainings(request):
        body = edit(training, writer.steps(training)) if training.level == level else None
        log += writer.training(training, body=body)
    summary = writer.judged(request, log)
    assert (summary.result, why in summary.sentence) == (result, True), summary.sentence


def test_level_5_does_not_ask_the_log_for_what_the_hook_saw(writer: Writer) -> None:
    request = replace(writer.request, level=5)
    smoke, long = trainings(request)
    body = [*built(long), *writer.steps(long)]
    summary = writer.judged(request, writer.preflight() + writer.training(smoke) + writer.training(long, body=body))
    assert summary.result == "Not proven"  # and no Fail: nothing says how many parameters train
    assert summary.criteria[1].status == "Not proven"


def test_a_trainer_that_was_started_again_is_not_proven(writer: Writer) -> None:
    """A wrapper that tries again ends with the exit code of the last try."""
    (smoke,) = trainings(writer.request)
    lines = writer.training(smoke, body=[*built(smoke), *LORA, *writer.steps(smoke)]).splitlines()
    settings = [line for line in lines if "TaskRunnerV1" in line and "step:" not in line]
    log = writer.preflight() + "\n".join([*lines[:2], *settings, *lines[2:]]) + "\n"
    summary = writer.judged(writer.request, log)
    assert summary.result == "Not proven"
    assert "exit code 0 is of the last of 2 starts of the trainer" in summary.sentence


def test_shutdown_after_the_last_step_may_be_noisy(writer: Writer) -> None:
    (smoke,) = trainings(writer.request)
    body = [*built(smoke), *LORA, *writer.steps(smoke), DEATH, *ROLLOUT]
    assert writer.judged(writer.request, writer.preflight() + writer.training(smoke, body=body)).result == "Pass"


# What ended a training, and with which exit code; the result, which is never Fail.
NOT_THE_CHANGE: list[tuple[str, Edit, int, str, str]] = [
    (
        "an odd word in the log of a training with exit code 0",
        lambda training, _: [*built(training), *LORA, FIRST_START, "(WorkerDict pid=90)   Format validation: FAIL"],
        0,
        "Not proven",
        "no Training Progress in the log",
    ),
    (
        "no checkpoint to resume from, and an end for which the log has no reason",
        lambda training, _: [*built(training), *LORA, FIRST_START],
        1,
        "Not proven",
        "exit code 1; the log does not say why",
    ),
    ("a swallowed rollout failure, first of all", lambda _, __: ROLLOUT, 0, "Blocked", "the rollout engine, before"),
    (
        "a swallowed rollout failure, after construction",
        lambda training, _: [*built(training), *LORA, *ROLLOUT],
        0,
        "Not proven",
        "the rollout engine, after",
    ),
    (
        "a worker over the memory limit of its container",
        lambda training, _: [
            *built(training),
            *LORA,
            "(raylet) Memory on the node was 30.1GB / 32.0GB (0.95), which exceeds the memory usage threshold of 0.95. "
            "Ray killed this worker (ID: 7) because it was the most recently scheduled task.",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ],
        1,
        "Blocked",
        "the host's or the container's memory, after",
    ),
    (
        "the watchdog of NCCL",
        lambda training, _: [
            *built(training),
            *LORA,
            "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
        ],
        1,
        "Not proven",
        "communication between GPUs, after",
    ),
]


@pytest.mark.parametrize(
    ("_", "edit", "exit_code", "result", "why"), NOT_THE_CHANGE, ids=[case[0] for case in NOT_THE_CHANGE]
)
def test_what_is_not_the_changes_is_no_fail(
    _: str, edit: Edit, exit_code: int, result: str, why: str, writer: Writer
) -> None:
    (smoke,) = trainings(writer.request)
    log = writer.preflight() + writer.training(smoke, body=edit(smoke, []), exit_code=exit_code)
    summary = writer.judged(writer.request, log, RunEnd("failed" if exit_code else "passed"))
    assert (summary.result, why in summary.sentence) == (result, True), summary.sentence


@pytest.mark.parametrize(("model", "result"), [("", "Blocked"), ("/models/of-mine", "Not proven")])
def test_expert_parallelism_of_a_dense_model_is_the_requests(model: str, result: str, writer: Writer) -> None:
    request = replace(writer.request, level=2, variants=("expert",), model_path=model)
    smoke, expert = trainings(request)
    body = [*TRACEBACK, "(WorkerDict pid=90) ValueError: num_moe_experts must be non None to use expert-parallel."]
    log = writer.preflight() + writer.training(smoke) + writer.training(expert, body=body, exit_code=1)
    summary = writer.judged(request, log, RunEnd("failed"))
    assert (summary.result, "usage: the expert variant" in summary.follow_ups[0]) == (result, True), summary.sentence


def test_a_warning_inside_the_printed_settings_tears_nothing(writer: Writer) -> None:
    (smoke,) = trainings(writer.request)
    log = writer.training(smoke)
    at = log.index("'critic'")
    at = log.rindex("\n", 0, at) + 1
    who = log[at : log.index(") ", at)] + ") "
    warning = f"{who}/v/x.py:3: FutureWarning: {{old}} [deprecated\n{who}  warnings.warn(\n"
    assert writer.judged(LevelRequest(0), writer.preflight() + log[:at] + warning + log[at:]).result == "Pass"
