"""Whole runs: the result and the deliverables of every level, of every way to fail that the guide names, and of runs
that end well and still show no pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.features.verl.judge.records import Summary
from ci_tasks.features.verl.judge.verdict import BACKEND, CHECKS, IMPORT, LOG, VARIANTS
from ci_tasks.features.verl.levels.levels import LEVELS, LevelRequest
from tests.features.verl.judge.conftest import BRIDGE, LORA, REQUEST, ROOT, Writer
from tests.parts.cases import named

Ended = tuple[str, str]
PASSED: Ended = ("passed", "")
FAILED: Ended = ("failed", "exit code 1")
LOST: Ended = ("lost", "the daemon is gone")
NO_EVIDENCE = "; this is not evidence against the Bridge change"
SMOKE_PASSED = "Pass - LoRA + DDP: Training Progress 1/1, metrics of global step 1; exit code 0"
IMPORTED = f"Pass - driver: {BRIDGE}; Ray worker: {BRIDGE}"
CHECKED = "Pass - uv run python -m pytest -q tests/unit_tests/models"
PACKAGED = "/usr/lib/python3/dist-packages/megatron/bridge/__init__.py"
MEGATRON = "actor_rollout_ref.actor.megatron"
VANILLA = {f"{MEGATRON}.vanilla_mbridge": True}
FEATURE = {"log_lines": [*LORA, "(WorkerDict pid=90) routing replay layers: 24"]}
FULL = "OSError: [Errno 28] No space left on device"
UNKNOWN = "RuntimeError: nobody knows this one"


def asked(level: int, **other: Any) -> LevelRequest:
    usual: dict[int, dict[str, Any]] = {
        1: {"exact": True},
        2: {"variants": ("dense", "expert"), "model_id": "org/moe"},
        4: {"proofs": (r"routing replay layers: \d+",), "env": {"ROUTING_REPLAY_MODE": "R3"}},
    }
    return replace(REQUEST, level=level, **{**usual.get(level, {}), **other})


def lines(summary: Summary) -> dict[str, str]:
    return {deliverable.name: f"{deliverable.status} - {deliverable.text}" for deliverable in summary.deliverables}


DONE = "Training Progress 1/1, metrics of global step 1; exit code 0"
VARIANT = {
    0: "Not requested - Level 0 only",
    1: f"Pass - save/resume: level 1: save: Pass, {DONE}; level 1: resume: Pass, Training Progress 2/2, metrics of "
    "global step 2; exit code 0; resumed at global step 1; level 1: uninterrupted: Pass, Training Progress 2/2, "
    "metrics of global step 2; exit code 0; equal metrics of global step 2, and 1 file by SHA-256",
    2: f"Pass - parallelism stress: {DONE}",
    3: f"Pass - Megatron-FSDP: {DONE}",
    4: f"Pass - feature-specific run: {DONE}; 'routing replay layers: 24'",
    5: "Pass - learning signal: Training Progress 20/20, metrics of global step 20; exit code 0; "
    "reward +0.57 over 20 steps, standard error 0",
}


@pytest.mark.parametrize("level", range(6))
def test_each_level_passes_on_its_own_evidence_and_never_claims_convergence(level: int, writer: Writer) -> None:
    summary = writer.ran(asked(level), *([{}, FEATURE] if level == 4 else []))
    assert (summary.result, summary.follow_ups) == ("Pass", ("none",))
    assert summary.sentence == f"Level {level} passed: {LEVELS[level].proves}"
    texts = (CHECKED, IMPORTED, SMOKE_PASSED, VARIANT[level], "Pass - /runs/1/log")
    assert lines(summary) == dict(zip((CHECKS, IMPORT, BACKEND, VARIANTS, LOG), texts, strict=True))


@pytest.mark.parametrize("path", [PACKAGED, "/old/Megatron-Bridge/src/megatron/bridge/__init__.py"])
@pytest.mark.parametrize("said", ["fail", "pass"])
def test_another_import_path_in_the_worker_alone_stops_the_run(path: str, said: str, writer: Writer) -> None:
    """Nor is a worker believed that says `pass` with such a path."""
    edits: list[dict[str, Any] | None] = [None] if said == "fail" else [{}, None]
    summary = writer.ran(asked(1), *edits, preflight={"import_worker": f"{said}: {path}"}, ended=FAILED)
    assert (summary.result, summary.sentence.endswith(NO_EVIDENCE)) == ("Blocked", True)
    assert lines(summary)[IMPORT] == f"Fail - not under {ROOT}/src: Ray worker: {path}; driver: {BRIDGE}"
    stopped = "stopped: megatron.bridge is not the local checkout's, so nothing that ran is evidence"
    assert lines(summary)[BACKEND] == f"Skipped - LoRA + DDP: {stopped}"
    assert lines(summary)[VARIANTS] == f"Skipped - save/resume: {stopped}"
    assert "runtime_env.env_vars.PYTHONPATH" in summary.follow_ups[0]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_ray_cluster_with_a_stale_path_makes_whatever_ran_no_evidence(exit_code: int, writer: Writer) -> None:
    stale = "(WorkerDict pid=90) [Rank 0] actor: megatron.bridge is /old/src/megatron/bridge/__init__.py"
    edit = {"log_lines": [stale], "exit_code": exit_code}
    summary = writer.ran(REQUEST, edit, ended=FAILED if exit_code else PASSED)
    why = f"not under {ROOT}/src: line {writer.line('/old/src')} of level 0: /old/src"
    assert (summary.result, summary.sentence.endswith(NO_EVIDENCE)) == ("Blocked", True)
    assert lines(summary)[IMPORT] == f"Fail - {why}; driver: {BRIDGE}; Ray worker: {BRIDGE}"
    assert lines(summary)[BACKEND].startswith("Skipped - LoRA + DDP: stopped: ")


def without(*words: str) -> dict[str, Any]:
    return {"body": lambda usual: [line for line in usual if not any(word in line for word in words)]}


def raised(*body: str, frame: str = "/v/x.py", exit_code: int = 1) -> dict[str, Any]:
    *before, error = body
    traceback = ["Traceback (most recent call last):", f'  File "{frame}", line 1, in f']
    return {"body": [*before, *traceback, error], "exit_code": exit_code}


TP = f"{MEGATRON}.tensor_model_parallel_size"
TRIVIAL = {"variants": ("dense",), "env": {"COMMON_TP": "1", "COMMON_PP": "1", "INFER_TP": "1"}}
PROVES_NOTHING = "'Adapter parameters' proves nothing: level 0, without the feature, has such a line too"
CAPPED = "100% of the last steps' responses hit the cap"
PROVIDER = "ValueError: tensor_model_parallel_size is 2 in the provider and 1 in mpu"
KEYS = "KeyError: 'visual.weight'"
ENGINE = "RuntimeError: Engine core initialization failed. See root cause above."
NO_BRIDGE = "ModuleNotFoundError: No module named 'megatron.bridge'"
BEFORE = "before Bridge-managed construction began: exit code 1"
AFTER = "after Bridge-managed construction began: exit code 1"
SEGFAULT = "Fatal Python error: Segmentation fault"
# The request, the trainings' edits, how the run ended, the result and words of the sentence.
CASES: list[tuple[LevelRequest, list[Mapping[str, Any]], Ended, str, str]] = [
    # What did not resolve as asked.
    (REQUEST, [{"resolved": VANILLA}], PASSED, "Fail",
     f"level 0: settings as asked: {MEGATRON}.vanilla_mbridge=True, not False (line 11); "
     "non-vanilla Bridge: VANILLA_MBRIDGE=True (line 11)"),
    (asked(0, env=dict.fromkeys(("VANILLA_MBRIDGE", "VALUE_VANILLA_MBRIDGE"), "True")), [], PASSED, "Fail",  # as asked
     "level 0: non-vanilla Bridge: VANILLA_MBRIDGE=True, VALUE_VANILLA_MBRIDGE=True ("),
    (asked(2, variants=("dense",)), [{}, {"resolved": {TP: 1}}], PASSED, "Fail",
     f"level 2: dense: settings as asked: {TP}=1, not 2 (line "),
    (asked(2, **TRIVIAL), [], PASSED, "Not proven",
     "level 2: dense: not seen: parallel sizes: all sizes of the trainer are 1: no evidence for distributed behavior"),
    # A feature is active only if a line of its own says so, no printed setting and none that level 0 has too.
    (asked(4), [], PASSED, "Not proven", r"the feature active: 'routing replay layers: \\d+' matches no line"),
    (asked(4, proofs=("Adapter parameters",)), [{}, FEATURE], PASSED, "Not proven", PROVES_NOTHING),
    # A resume.
    (asked(1), [{}, {}, {"first": 1, "log_lines": [*LORA, "INFO:2025-01-02 03:04:05,678:Training from scratch"]}, {}],
     PASSED, "Fail", "level 1: resume: resume from the checkpoint: INFO:2025-01-02 03:04:05,678:Training"),
    (asked(1), [{}, {}, {"first": 1}, {}], PASSED, "Fail", "it trained global step 1 again: nothing was loaded"),
    # What fails before construction blocks, what fails in it or later is the change's.
    (REQUEST, [raised(ENGINE)], FAILED, "Blocked", f"level 0: the rollout engine, {BEFORE}, {ENGINE} (line "),
    (REQUEST, [{"body": [UNKNOWN, "(WorkerDict pid=91) module: 1"], "exit_code": 1}], FAILED, "Blocked",
     "before Bridge"),
    (asked(3), [{}, {"body": [FULL], "exit_code": 1}], FAILED, "Blocked", f"exit code 1, {FULL} (line "),
    (REQUEST, [raised(NO_BRIDGE, frame="/src/verl/verl/models/mcore/bridge.py")], FAILED, "Blocked",
     f"of level 0: {NO_BRIDGE}"),
    (REQUEST, [raised(PROVIDER, frame=f"{ROOT}/src/megatron/bridge/models/gpt_provider.py")], FAILED, "Fail",
     f"level 0: in Bridge-managed construction: exit code 1, {PROVIDER} (line "),
    (REQUEST, [raised("module: 1", KEYS, frame="/v/megatron_checkpoint_manager.py")], FAILED, "Fail",
     f"level 0: checkpoint save/load, {AFTER}, {KEYS} (line "),
    # Metrics without a learning signal.
    (asked(5), [{}, {"series": {"response_length/clip_ratio": [1.0] * 20}}], PASSED, "Fail",
     f"responses end before the length cap: {CAPPED}"),
    # Steps and exit codes.
    (asked(5), [{}, {"last": 18}], PASSED, "Fail",
     "training steps: Training Progress 18/18, no metrics of global step 20: not 20/20"),
    (REQUEST, [{"body": lambda usual: ["module: 1", *usual[3:], SEGFAULT], "exit_code": 139}], PASSED, "Not proven",
     "all steps are done, but the process did not exit successfully:"),
    (REQUEST, [without("Progress", "step:")], PASSED, "Not proven", "no metrics of global step 1"),
    (REQUEST, [], FAILED, "Not proven", "the run ended as failed: exit code 1"),
    # An earlier failure wins over a later block.
    (asked(1), [{"resolved": VANILLA}, {"body": [], "exit_code": None}, {}, {}], LOST, "Fail",
     "level 0: settings as"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "edits", "ended", "result", "words"), CASES, ids=[c[4][:50] for c in CASES])
def test_a_result_has_its_reason(
    request_: LevelRequest, edits: list[Mapping[str, Any]], ended: Ended, result: str, words: str, writer: Writer
) -> None:
    summary = writer.ran(request_, *edits, ended=ended)
    assert (summary.result, words in summary.sentence) == (result, True), summary.sentence
    assert ("not evidence" in summary.sentence) is (result == "Blocked")


@pytest.mark.parametrize("text", ["fail: /models/rm does not exist", f"blocked: {FULL}"])
def test_a_preflight_that_does_not_pass_blocks_and_skips_the_run(text: str, writer: Writer) -> None:
    why = f"model: {text.split(': ', 1)[1]}"
    summary = writer.ran(asked(3), None, preflight={"model": text}, ended=FAILED)
    assert (summary.result, summary.sentence) == ("Blocked", f"{why}{NO_EVIDENCE}")
    assert lines(summary)[BACKEND] == f"Skipped - LoRA + DDP: not run: {why}"
    assert [step.partition(":")[0] for step in summary.follow_ups][1:] == ["rerun what was skipped"]
    assert lines(summary)[VARIANTS] == f"Skipped - Megatron-FSDP: not run: {why}"


def test_resume_with_another_rollout_passes_with_limitation_and_one_with_other_tensors_does_not(writer: Writer) -> None:
    def last(old: str, new: str) -> Summary:
        return writer.ran(asked(1), log=lambda text: new.join(text.rsplit(old, 1)))

    rollout, tensors = last("critic/values/mean:0.2", "critic/values/mean:0.3"), last("0" * 64, "1" + "0" * 63)
    assert (rollout.result, tensors.result) == ("Pass", "Not proven")
    assert any("other metrics or files: sampling differs" in line for line in rollout.limitations)
    assert "see whether the optimizer's state was saved and read back" in tensors.follow_ups


CHECK_MARKS = [
    ("fail: 2 failed", "Fail", "Fail - 2 failed"),
    ("skipped: no such test", "Not proven", "Skipped - "),
    ("blocked: exit code 2", "Not proven", "Skipped - "),
    (None, "Not proven", "Skipped - "),
    ("simulated: no uv", "Pass", "Skipped - "),  # nothing that a simulating host shows is evidence
]


@pytest.mark.parametrize(("mark", "result", "line"), CHECK_MARKS)
def test_bridge_checks_that_failed_or_that_nobody_saw_pass_leave_no_pass(
    mark: str | None, result: str, line: str, writer: Writer
) -> None:
    summary = writer.ran(REQUEST, preflight={"bridge_checks": mark})
    assert summary.result == result
    assert lines(summary)[CHECKS].startswith(line) and lines(summary)[BACKEND] == SMOKE_PASSED
    assert summary.sentence == "focused Bridge checks failed: 2 failed" or result != "Fail"
    limited = any(text.startswith("focused Bridge checks were not run") for text in summary.limitations)
    assert limited is (result != "Fail")
    assert any(step.startswith("run the focused") for step in summary.follow_ups) is (result == "Not proven")


def test_a_preflights_word_on_imports_decides(writer: Writer) -> None:
    nobody_looked = writer.ran(REQUEST, preflight={"import_worker": None})
    assert nobody_looked.result == "Not proven"
    assert lines(nobody_looked)[IMPORT] == f"Not proven - driver: {BRIDGE}; Ray worker: not checked"
    nothing: dict[str, Any] = {"import_driver": None, "import_worker": None}
    unreached = writer.ran(REQUEST, None, preflight=nothing)
    assert lines(unreached)[IMPORT].startswith("Blocked - not reached: "), lines(unreached)
    text = f"{NO_BRIDGE[:-1]}.models.new'"
    missing = writer.ran(REQUEST, None, preflight={"import_driver": f"fail: {text}"}, ended=("failed", ""))
    assert (missing.result, missing.sentence) == ("Fail", f"{IMPORT}: driver: {text}; Ray worker: {BRIDGE}"), (
        "Bridge's own module"
    )


# -- one training of level 0 or 3 --------------------------------------------------------------------------------------

Edit = Callable[[list[str]], Sequence[str]]
BRIDGE_FRAME = '  File "/src/Megatron-Bridge/src/megatron/bridge/peft/lora.py", line 221, in transform'
TRACEBACK = ("(WorkerDict pid=90) Traceback (most recent call last):", f"(WorkerDict pid=90) {BRIDGE_FRAME}")
DEATH = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
FIRST_START = "(TaskRunner pid=71) Checkpoint tracker file does not exist: /c/latest_checkpointed_iteration.txt"
ROLLOUT = ("Traceback (most recent call last):", '  File "/v/vllm/v1/engine/core.py", line 9, in init', ENGINE)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
OPTIONAL = (
    "(WorkerDict pid=90) Import of X from transformer_engine failed with: Traceback (most recent call last):",
    f"(WorkerDict pid=90) {BRIDGE_FRAME.replace('transform', 'safe_import_from')}",
    "(WorkerDict pid=90) AttributeError: module 'transformer_engine' has no attribute 'X'",
)
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
NO_EXCEPTION = "no exception in Bridge-managed construction or a step"
NO_STEP = "Training Progress 0/0, no metrics of global step 1: not 1/1"


def before(*extra: str) -> Edit:
    """After the model was built."""
    return lambda usual: [*usual[:3], *extra, *usual[3:]]


def built(*extra: str) -> Edit:
    """In the place of all steps."""
    return lambda usual: [*usual[:3], *extra]


def changed(old: str, new: str) -> Edit:
    return lambda usual: [line.replace(old, new) for line in usual]


# What the log of a training has else, with its exit code and level; the result, and words of the sentence.
EDITS: dict[str, tuple[Edit, int, int, str, str]] = {
    "a swallowed traceback in Bridge": (
        before(*TRACEBACK, "(WorkerDict pid=90) KeyError: 'linear_qkv'"), 0, 0, "Fail",
        f"{NO_EXCEPTION}: KeyError: 'linear_qkv' (line"),
    "a worker that died before the end": (before(DEATH), 0, 0, "Not proven", f"{NO_EXCEPTION}: Ray or the death"),
    "out of memory, swallowed": (before(OOM), 0, 0, "Not proven", "GPU memory, after Bridge-managed construction"),
    "an optional import that Bridge does without": (before(*OPTIONAL), 0, 0, "Pass", "Level 0 passed"),
    "no line of LoRA": (without("Adapter")["body"], 0, 0, "Not proven", "LoRA with trainable parameters: nothing"),
    "nothing trainable": (changed("8,192", "0"), 0, 0, "Fail", "LoRA with trainable parameters: 0 trainable"),
    "NaN in the loss": (changed("pg_loss:0.5", "pg_loss:nan"), 0, 0, "Fail", "actor/pg_loss is nan at step 1"),
    "no word of a wrapper": (without("Setting up")["body"], 0, 0, "Not proven", "model wrapper: nothing shows"),
    "DDP where Megatron-FSDP was asked for": (
        changed("megatron_fsdp=True", "megatron_fsdp=False"), 0, 3, "Fail", "DDP was built, not Megatron-FSDP"),
    "a model past Megatron-Bridge": (before("TF config: x"), 0, 0, "Fail", "non-vanilla Bridge: a model was built"),
    "a shutdown that is noisy": (lambda usual: [*usual, DEATH, *ROLLOUT], 0, 0, "Pass", "Level 0 passed"),
    # What is not the change's.
    "an odd word with exit code 0": (built(FIRST_START, ODD_WORD), 0, 0, "Not proven", NO_STEP),
    "no checkpoint to resume from": (built(FIRST_START), 1, 0, "Not proven", "exit code 1; the log does not say why"),
    "a swallowed rollout failure": (lambda _: ROLLOUT, 0, 0, "Blocked", "the rollout engine, before"),
    "a rollout failure, later": (built(*ROLLOUT), 0, 0, "Not proven", "the rollout engine, after"),
    "a container's memory limit": (built(*MEMORY), 1, 0, "Blocked", "the machine, after"),
    "the watchdog of NCCL": (built(WATCHDOG), 1, 0, "Not proven", "communication, after"),
}  # fmt: skip


@named(("edit", "exit_code", "level", "result", "why"), EDITS)
def test_exit_code_0_and_all_steps_are_not_enough_and_exit_code_1_is_no_fail(
    edit: Edit, exit_code: int, level: int, result: str, why: str, writer: Writer
) -> None:
    edits = [*([{}] if level else []), {"body": edit, "exit_code": exit_code}]
    summary = writer.ran(replace(REQUEST, level=level), *edits, ended=FAILED if exit_code else PASSED)
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
