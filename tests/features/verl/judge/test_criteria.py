"""Single criteria: runs that end well and still show no pass, and runs that end badly for what is not the change's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.features.verl.levels.levels import LevelRequest
from tests.features.verl.judge.conftest import REQUEST

if TYPE_CHECKING:
    from tests.features.verl.judge.conftest import Writer

Edit = Callable[[list[str]], Sequence[str]]
BRIDGE_FRAME = '  File "/src/Megatron-Bridge/src/megatron/bridge/peft/lora.py", line 221, in transform'
TRACEBACK = ("(WorkerDict pid=90) Traceback (most recent call last):", f"(WorkerDict pid=90) {BRIDGE_FRAME}")
DEATH = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
FIRST_START = "(TaskRunner pid=71) Checkpoint tracker file does not exist: /c/latest_checkpointed_iteration.txt"
ROLLOUT = (
    "Traceback (most recent call last):",
    '  File "/v/vllm/v1/engine/core.py", line 9, in init',
    "RuntimeError: Engine core initialization failed. See root cause above.",
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
OPTIONAL = (
    "(WorkerDict pid=90) Import of X from transformer_engine failed with: Traceback (most recent call last):",
    f"(WorkerDict pid=90) {BRIDGE_FRAME.replace('transform', 'safe_import_from')}",
    "(WorkerDict pid=90) AttributeError: module 'transformer_engine' has no attribute 'X'",
)
NO_EXCEPTION = "no exception in Bridge-managed construction or a step"


def before(*extra: str) -> Edit:
    """After the model was built."""
    return lambda usual: [*usual[:3], *extra, *usual[3:]]


def built(*extra: str) -> Edit:
    """In the place of all steps."""
    return lambda usual: [*usual[:3], *extra]


def without(text: str) -> Edit:
    return lambda usual: [line for line in usual if text not in line]


def changed(old: str, new: str) -> Edit:
    return lambda usual: [line.replace(old, new) for line in usual]


# What the log of a training with exit code 0 and all of its steps has else; level; result; the criterion and outcome.
EXIT_0: dict[str, tuple[Edit, int, str, str]] = {
    "a swallowed traceback in Bridge": (
        before(*TRACEBACK, "(WorkerDict pid=90) KeyError: 'linear_qkv'"), 0, "Fail",
        f"{NO_EXCEPTION}: KeyError: 'linear_qkv' (line"),
    "a worker that died before the end": (before(DEATH), 0, "Not proven", f"{NO_EXCEPTION}: Ray or the death"),
    "out of memory, swallowed": (
        before(OOM), 0, "Not proven", "GPU memory, after Bridge-managed construction began: torch.OutOfMemoryError"),
    "an optional import that Bridge does without": (before(*OPTIONAL), 0, "Pass", "Level 0 passed"),
    "no line of LoRA": (without("Adapter"), 0, "Not proven", "LoRA with trainable parameters: nothing shows"),
    "nothing trainable": (changed("8,192", "0"), 0, "Fail", "LoRA with trainable parameters: 0 trainable"),
    "NaN in the loss": (changed("pg_loss:0.5", "pg_loss:nan"), 0, "Fail", "actor/pg_loss is nan at step 1"),
    "no word of a wrapper": (without("Setting up"), 0, "Not proven", "model wrapper: nothing shows"),
    "DDP where Megatron-FSDP was asked for": (
        changed("megatron_fsdp=True", "megatron_fsdp=False"), 3, "Fail", "wrapper: DDP was built, not Megatron-FSDP"),
    "a model past Megatron-Bridge": (before("TF config: x"), 0, "Fail", "non-vanilla Bridge: a model was built past"),
    "a shutdown that is noisy": (lambda usual: [*usual, DEATH, *ROLLOUT], 0, "Pass", "Level 0 passed"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "level", "result", "why"), EXIT_0.values(), ids=EXIT_0)
def test_exit_code_0_and_all_steps_are_not_enough(
    edit: Edit, level: int, result: str, why: str, writer: Writer
) -> None:
    edits: list[dict[str, Any]] = [{}, {"body": edit}] if level else [{"body": edit}]
    summary = writer.ran(replace(REQUEST, level=level), *edits)
    assert (summary.result, why in summary.sentence) == (result, True), summary.sentence


def test_a_trainer_that_was_started_again_is_not_proven(writer: Writer) -> None:
    """A wrapper that tries again ends with the exit code of the last try."""

    def twice(text: str) -> str:
        lines = text.splitlines()
        settings = [line for line in lines if "TaskRunnerV1" in line and "step:" not in line]
        at = lines.index(settings[0])
        return "\n".join([*lines[:at], *settings, *lines[at:]]) + "\n"

    summary = writer.ran(REQUEST, log=twice)
    assert summary.result == "Not proven"
    assert "exit code 0 is of the last of 2 starts of the trainer" in summary.sentence


MEMORY = (
    "(raylet) Memory on the node was 30.1GB / 32.0GB (0.95), which exceeds the memory usage threshold of 0.95. "
    "Ray killed this worker (ID: 7) because it was the most recently scheduled task.",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
)
WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
ODD_WORD = "(WorkerDict pid=90)   Format validation: FAIL"
# What ended a training, and with which exit code; the result, which is never Fail.
NOT_THE_CHANGE: dict[str, tuple[Edit, int, str, str]] = {
    "an odd word with exit code 0": (
        built(FIRST_START, ODD_WORD),
        0,
        "Not proven",
        "Training Progress 0/0, no metrics of global step 1: not 1/1",
    ),
    "no checkpoint to resume from": (built(FIRST_START), 1, "Not proven", "exit code 1; the log does not say why"),
    "a swallowed rollout failure": (lambda _: ROLLOUT, 0, "Blocked", "the rollout engine, before"),
    "a rollout failure, later": (built(*ROLLOUT), 0, "Not proven", "the rollout engine, after"),
    "a container's memory limit": (built(*MEMORY), 1, "Blocked", "the machine, after"),
    "the watchdog of NCCL": (built(WATCHDOG), 1, "Not proven", "communication, after"),
}


@pytest.mark.parametrize(("edit", "exit_code", "result", "why"), NOT_THE_CHANGE.values(), ids=NOT_THE_CHANGE)
def test_what_is_not_the_changes_is_no_fail(edit: Edit, exit_code: int, result: str, why: str, writer: Writer) -> None:
    ended = ("failed" if exit_code else "passed", "")
    summary = writer.ran(REQUEST, {"body": edit, "exit_code": exit_code}, ended=ended)
    assert (summary.result, why in summary.sentence) == (result, True), summary.sentence


def test_a_warning_inside_the_printed_settings_tears_nothing(writer: Writer) -> None:
    def warned(text: str) -> str:
        at = text.rindex("\n", 0, text.index("'critic'")) + 1
        who = text[at : text.index(") ", at)] + ") "
        return f"{text[:at]}{who}/v/x.py:3: FutureWarning: {{old}} [deprecated\n{who}  warnings.warn(\n{text[at:]}"

    assert writer.ran(LevelRequest(0), log=warned).result == "Pass"
