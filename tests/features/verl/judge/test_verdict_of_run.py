"""Whole runs: the result and the deliverables of every level, and of every way to fail that the guide names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ci_tasks.features.verl.judge.verdict_of_training import RunEnd
from ci_tasks.features.verl.levels.levels import LEVELS, LevelRequest, trainings
from ci_tasks.features.verl.levels.summary import BACKEND, CHECKS, IMPORT, LOG, VARIANTS, Summary
from tests.features.verl.judge.conftest import LORA, built

if TYPE_CHECKING:
    from tests.features.verl.judge.conftest import Writer

ROOT = "/work/Megatron-Bridge"
BRIDGE = f"{ROOT}/src/megatron/bridge/__init__.py"
NO_EVIDENCE = "; this is not evidence against the Bridge change"
SMOKE_PASSED = "Pass - LoRA + DDP: Training Progress 1/1, metrics of global step 1; exit code 0"
IMPORTED = f"Pass - driver: {BRIDGE}; Ray worker: {BRIDGE}"
CHECKED = "Pass - uv run python -m pytest -q tests/unit_tests/models"
PACKAGED = "/usr/lib/python3/dist-packages/megatron/bridge/__init__.py"


def request_of(writer: Writer, level: int, **other: object) -> LevelRequest:
    proofs = (r"routing replay layers: \d+",) if level == 4 else ()
    env = {"ROUTING_REPLAY_MODE": "R3"} if level == 4 else {}
    variants = ("dense", "expert") if level == 2 else ("dense",)
    return replace(writer.request, level=level, proofs=proofs, env=env, variants=variants, **other)  # type: ignore[arg-type]


def whole(writer: Writer, request: LevelRequest) -> str:
    """The log of a run in which everything went well."""
    feature = "(WorkerDict pid=90) routing replay layers: 24"
    return writer.preflight() + "".join(
        writer.training(training, log_lines=[*LORA, feature] if training.level == 4 else LORA)
        for training in trainings(request)
    )


def lines(summary: Summary) -> dict[str, str]:
    return {deliverable.name: f"{deliverable.status} - {deliverable.text}" for deliverable in summary.deliverables}


VARIANT = {
    0: "Not requested - Level 0 only",
    1: "Pass - save/resume: level 1: save: Pass, Training Progress 1/1, metrics of global step 1; exit code 0; "
    "level 1: resume: Pass, Training Progress 2/2, metrics of global step 2; exit code 0; resumed at global step 1; "
    "level 1: uninterrupted: Pass, Training Progress 2/2, metrics of global step 2; exit code 0; all 8 metrics of "
    "global step 2 are equal, and 1 file of tensors after it, by SHA-256",
    2: "Pass - parallelism stress: "
    "level 2: dense: Pass, Training Progress 1/1, metrics of global step 1; exit code 0; "
    "level 2: expert: Pass, Training Progress 1/1, metrics of global step 1; exit code 0",
    3: "Pass - Megatron-FSDP: Training Progress 1/1, metrics of global step 1; exit code 0",
    4: "Pass - feature-specific run: Training Progress 1/1, metrics of global step 1; exit code 0; "
    "'routing replay layers: 24'",
    5: "Pass - learning signal: Training Progress 20/20, metrics of global step 20; exit code 0; "
    "reward +0.57 over 20 steps, standard error 0",
}


@pytest.mark.parametrize("level", [level.number for level in LEVELS])
def test_each_level_passes_on_its_own_evidence(level: int, writer: Writer) -> None:
    request = request_of(writer, level)
    log = whole(writer, request)
    summary = writer.judged(request, log)
    assert summary.result == "Pass"
    assert summary.passed_level == level
    assert lines(summary) == {
        CHECKS: CHECKED,
        IMPORT: IMPORTED,
        BACKEND: SMOKE_PASSED,
        VARIANTS: VARIANT[level],
        LOG: "Pass - /runs/1/log",
    }
    assert summary.follow_ups == ("none",)


def test_a_pass_names_its_exact_level_and_never_convergence(writer: Writer) -> None:
    sentences = [
        writer.judged(request, whole(writer, request)).sentence for request in (request_of(writer, n) for n in range(6))
    ]
    assert sentences[:5] == [f"Level {level.number} passed: {level.proves}" for level in LEVELS[:5]]
    assert sentences[5] == "Level 5 learning-signal passed over 20 steps; no claim of benchmark convergence"


def test_a_wrong_import_path_in_the_worker_only_stops_the_run(writer: Writer) -> None:
    log = writer.preflight(import_worker=f"fail: {PACKAGED}")
    summary = writer.judged(request_of(writer, 1), log, RunEnd("failed", "the preflight failed"))
    assert (summary.result, summary.sentence) == ("Blocked", f"{IMPORT}: Ray worker: {PACKAGED}{NO_EVIDENCE}")
    stopped = "Skipped - {}: stopped: megatron.bridge is not the local checkout's, so nothing that ran is evidence"
    assert lines(summary) == {
        CHECKS: CHECKED,
        IMPORT: f"Fail - driver: {BRIDGE}; Ray worker: {PACKAGED}",
        BACKEND: stopped.format("LoRA + DDP"),
        VARIANTS: stopped.format("save/resume"),
        LOG: "Pass - /runs/1/log",
    }
    assert "runtime_env.env_vars.PYTHONPATH" in summary.follow_ups[0]


@pytest.mark.parametrize(
    ("path", "who"),
    [(PACKAGED, "an installed package"), ("/old/Megatron-Bridge/src/megatron/bridge/__init__.py", "another checkout")],
)
def test_a_worker_that_says_pass_with_another_path_is_not_believed(path: str, who: str, writer: Writer) -> None:
    log = writer.preflight(import_worker=f"pass: {path}") + writer.training(trainings(writer.request)[0])
    summary = writer.judged(writer.request, log)
    assert summary.result == "Blocked", who
    assert lines(summary)[IMPORT] == f"Fail - driver: {BRIDGE}; Ray worker: {path} is not under {ROOT}/src"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_ray_cluster_with_a_stale_path_makes_whatever_ran_no_evidence(exit_code: int, writer: Writer) -> None:
    log_lines = ["(WorkerDict pid=90) [Rank 0] actor: megatron.bridge is /old/src/megatron/bridge/__init__.py"]
    log = writer.preflight() + writer.training(trainings(writer.request)[0], log_lines=log_lines, exit_code=exit_code)
    summary = writer.judged(writer.request, log, RunEnd("passed" if exit_code == 0 else "failed"))
    line = next(at for at, text in enumerate(log.split("\n"), 1) if "/old/src" in text)
    why = f"line {line} of level 0: /old/src/megatron/bridge is not under {ROOT}/src"
    assert (summary.result, summary.sentence) == ("Blocked", f"{IMPORT}: {why}{NO_EVIDENCE}")
    assert lines(summary)[IMPORT] == f"Fail - driver: {BRIDGE}; Ray worker: {BRIDGE}; {why}"
    assert lines(summary)[BACKEND].startswith("Skipped - LoRA + DDP: stopped: ")


def test_a_worker_without_bridge_is_an_import_that_failed(writer: Writer) -> None:
    body = [
        "(WorkerDict pid=90) Traceback (most recent call last):",
        '(WorkerDict pid=90)   File "/work/verl/verl/models/mcore/bridge.py", line 17, in <module>',
        "(WorkerDict pid=90) ModuleNotFoundError: No module named 'megatron.bridge'",
    ]
    log = writer.preflight() + writer.training(trainings(writer.request)[0], body=body, exit_code=1)
    summary = writer.judged(writer.request, log, RunEnd("failed"))
    assert summary.result == "Blocked"
    assert lines(summary)[IMPORT].endswith("of level 0: ModuleNotFoundError: No module named 'megatron.bridge'")


def test_bridges_own_missing_module_is_a_failure_of_the_change(writer: Writer) -> None:
    text = "ModuleNotFoundError: No module named 'megatron.bridge.models.new'"
    summary = writer.judged(writer.request, writer.preflight(import_driver=f"fail: {text}"), RunEnd("failed"))
    assert (summary.result, summary.sentence) == ("Fail", f"{IMPORT}: driver: {text}")


def test_a_resume_that_loads_nothing_fails(writer: Writer) -> None:
    request = request_of(writer, 1)
    smoke, save, resume, _ = trainings(request)
    body = [*built(resume), *LORA, "INFO:2025-01-02 03:04:05,678:Training from scratch", *writer.steps(resume, first=1)]
    log = writer.preflight() + writer.training(smoke) + writer.training(save) + writer.training(resume, body=body)
    summary = writer.judged(request, log)
    line = next(at for at, text in enumerate(log.split("\n"), 1) if "from scratch" in text)
    why = f"resume from the checkpoint: INFO:2025-01-02 03:04:05,678:Training from scratch (line {line})"
    assert (summary.result, summary.sentence) == ("Fail", f"level 1: resume: {why}; level 0 passed")
    saved = "level 1: save: Pass, Training Progress 1/1, metrics of global step 1; exit code 0"
    assert lines(summary)[BACKEND] == SMOKE_PASSED
    not_run = "level 1: uninterrupted: Skipped, not run: level 1: resume did not pass"
    assert lines(summary)[VARIANTS] == f"Fail - save/resume: {saved}; level 1: resume: Fail, {why}; {not_run}"
    assert summary.passed_level == 0


def test_a_resume_that_says_nothing_of_a_checkpoint_is_not_proven(writer: Writer) -> None:
    request = request_of(writer, 1)
    smoke, save, resume, _ = trainings(request)
    steps = [*built(resume), *LORA, *(line for line in writer.steps(resume) if "Resuming" not in line)]
    log = writer.preflight() + writer.training(smoke) + writer.training(save) + writer.training(resume, body=steps)
    summary = writer.judged(request, log)
    assert summary.result == "Not proven"
    assert "not seen: resume from the checkpoint: no line says from which checkpoint" in summary.sentence


@pytest.mark.parametrize(
    ("dotted", "name"),
    [
        ("actor_rollout_ref.actor.megatron.vanilla_mbridge", "VANILLA_MBRIDGE"),
        ("critic.megatron.vanilla_mbridge", "VALUE_VANILLA_MBRIDGE"),
    ],
)
def test_vanilla_mbridge_in_the_log_fails(dotted: str, name: str, writer: Writer) -> None:
    log = writer.preflight() + writer.training(trainings(writer.request)[0], resolved={dotted: True})
    summary = writer.judged(writer.request, log)
    why = f"settings as asked: {dotted}=True, not False ({name}) (line 11); non-vanilla Bridge: {name}=True (line 11)"
    assert (summary.result, summary.sentence) == ("Fail", f"level 0: {why}")
    assert lines(summary)[BACKEND] == f"Fail - LoRA + DDP: {why}"
    assert lines(summary)[IMPORT] == IMPORTED
    assert summary.follow_ups == ("rerun with what was asked for active in the resolved settings",)


def test_vanilla_mbridge_fails_even_where_it_was_asked_for(writer: Writer) -> None:
    request = replace(writer.request, env={"VANILLA_MBRIDGE": "True"})
    summary = writer.judged(request, whole(writer, request))
    assert (summary.result, summary.sentence[:51]) == ("Fail", "level 0: non-vanilla Bridge: VANILLA_MBRIDGE=True (")


def test_a_parallel_size_that_did_not_resolve_as_asked_fails(writer: Writer) -> None:
    request = replace(request_of(writer, 2), variants=("dense",))
    smoke, dense = trainings(request)
    other = {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 1}
    log = writer.preflight() + writer.training(smoke) + writer.training(dense, resolved=other)
    sentence = writer.judged(request, log).sentence
    name = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
    assert sentence.startswith(f"level 2: dense: settings as asked: {name}=1, not 2 (COMMON_TP) (line ")


def test_level_2_without_parallelism_is_no_evidence(writer: Writer) -> None:
    trivial = {"COMMON_TP": "1", "COMMON_PP": "1", "INFER_TP": "1"}
    request = replace(request_of(writer, 2), variants=("dense",), env=trivial)
    why = (
        "level 2: dense: not seen: parallel sizes: all parallel sizes are 1: no evidence for distributed behavior; "
        "level 0 passed"
    )
    assert writer.judged(request, whole(writer, request)).sentence == why


def test_fsdp_with_fused_gradients_fails(writer: Writer) -> None:
    request = request_of(writer, 3)
    smoke, fsdp = trainings(request)
    name = "critic.megatron.override_transformer_config.gradient_accumulation_fusion"
    log = writer.preflight() + writer.training(smoke) + writer.training(fsdp, resolved={name: True})
    assert writer.judged(request, log).sentence.startswith(f"level 3: settings as asked: {name}=True, not False (line ")


def test_a_feature_that_was_not_seen_active_is_not_proven(writer: Writer) -> None:
    request = request_of(writer, 4)
    log = writer.preflight() + "".join(writer.training(training) for training in trainings(request))
    summary = writer.judged(request, log)
    why = "not seen: the feature active: no line matches 'routing replay layers: \\\\d+'"
    assert summary.result == "Not proven"
    assert lines(summary)[VARIANTS] == f"Not proven - feature-specific run: {why}"


def test_a_proof_that_level_0_shows_too_proves_nothing(writer: Writer) -> None:
    request = replace(request_of(writer, 4), proofs=("Adapter parameters",))
    summary = writer.judged(request, whole(writer, request))
    assert summary.result == "Not proven"
    assert "'Adapter parameters' proves nothing: level 0, without the feature, has such a line too" in summary.sentence


def test_the_printed_settings_are_no_proof_of_a_feature(writer: Writer) -> None:
    request = replace(request_of(writer, 4), proofs=("R3",))
    smoke, feature = trainings(request)
    mode = {"actor_rollout_ref.actor.megatron.router_replay.mode": "R3"}
    log = writer.preflight() + writer.training(smoke) + writer.training(feature, resolved=mode)
    assert "no line matches 'R3'" in writer.judged(request, log).sentence


def test_settings_of_the_command_alone_are_not_trusted(writer: Writer) -> None:
    smoke = trainings(writer.request)[0]
    trace = "+ python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.megatron.vanilla_mbridge=False"
    marks = writer.training(smoke, body=[trace, *writer.steps(smoke)]).split("\n")
    log = writer.preflight() + "\n".join(line for line in marks if "TaskRunnerV1" not in line or "step:" in line)
    summary = writer.judged(writer.request, log)
    assert summary.result == "Not proven"
    assert summary.sentence.startswith(
        "level 0: not seen: settings as asked: the log does not show verl's resolved settings, and the command alone "
        "is not trusted"
    )
    assert "from the command, not resolved: VANILLA_MBRIDGE=False" in summary.evidence[3].lines[0]


# What the preflight or the job says; the result's sentence without its ending, and the line of the backend run.
@pytest.mark.parametrize(
    ("key", "text", "stage"),
    [
        ("reward_model", "fail: /models/rm does not exist", "the reward model"),
        ("model", "blocked: OSError: [Errno 28] No space left on device", "a full disk"),
        ("ray", "fail: the cluster at 10.0.0.1 does not answer", "Ray"),
        ("modelopt", "fail: nvidia-modelopt is not installed", "nvidia-modelopt"),
        ("data", "blocked: no train.parquet", "the data"),
    ],
)
def test_a_preflight_that_does_not_pass_blocks_and_skips_the_run(
    key: str, text: str, stage: str, writer: Writer
) -> None:
    reason = text.split(": ", 1)[1]
    name = key.replace("_", "-")
    summary = writer.judged(request_of(writer, 3), writer.preflight(**{key: text}), RunEnd("failed", "exit code 1"))
    assert (summary.result, summary.sentence) == ("Blocked", f"{stage} ({name}): {reason}{NO_EVIDENCE}")
    assert lines(summary)[BACKEND] == f"Skipped - LoRA + DDP: not run: {name}: {reason}"
    assert lines(summary)[VARIANTS] == f"Skipped - Megatron-FSDP: not run: {name}: {reason}"
    assert summary.passed_level is None


@pytest.mark.parametrize(
    ("body", "stage"),
    [
        (["ValueError: Invalid repository ID or local directory specified: '/models/rm'."], "the reward model"),
        (["OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub/x'"], "a full disk"),
        (["ValueError: Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set."], "ROCR_VISIBLE"),
        (["RuntimeError: Engine core initialization failed. See root cause above."], "the rollout engine"),
    ],
)
def test_what_fails_before_construction_blocks(body: list[str], stage: str, writer: Writer) -> None:
    log_lines = ["Traceback (most recent call last):", '  File "/v/x.py", line 1, in f', *body]
    log = writer.preflight() + writer.training(trainings(writer.request)[0], body=log_lines, exit_code=1)
    summary = writer.judged(writer.request, log, RunEnd("failed", "exit code 1"))
    line = next(at for at, text in enumerate(log.split("\n"), 1) if text == body[0])
    assert summary.result == "Blocked"
    assert summary.sentence.startswith(f"level 0: {stage}")
    end = f"before Bridge-managed construction began: exit code 1, {body[0]} (line {line})"
    assert summary.sentence.endswith(f"{end}{NO_EVIDENCE}")
    assert lines(summary)[BACKEND].startswith("Blocked - LoRA + DDP: ")
    assert lines(summary)[IMPORT] == IMPORTED


@pytest.mark.parametrize(
    ("log_lines", "frame", "text", "where"),
    [
        (
            (),
            f"{ROOT}/src/megatron/bridge/models/gpt_provider.py",
            "ValueError: tensor_model_parallel_size is 2 in the provider and 1 in mpu",
            "in Bridge-managed construction",
        ),
        (
            (),
            f"{ROOT}/src/megatron/bridge/models/qwen.py",
            "RuntimeError: nobody knows this one",
            "the training step, after Bridge-managed construction began",
        ),
        (
            ("module: 1",),
            "/v/peft.py",
            "ValueError: LoRA target modules ['x'] are not in the model",
            "LoRA, after Bridge-managed construction began",
        ),
        (
            ("module: 1",),
            "/v/megatron_checkpoint_manager.py",
            "KeyError: 'visual.weight'",
            "checkpoint save/load, after Bridge-managed construction began",
        ),
    ],
)
def test_what_fails_in_construction_or_after_it_fails(
    log_lines: tuple[str, ...], frame: str, text: str, where: str, writer: Writer
) -> None:
    body = [*log_lines, "Traceback (most recent call last):", f'  File "{frame}", line 1, in f', text]
    log = writer.preflight() + writer.training(trainings(writer.request)[0], body=body, exit_code=1)
    summary = writer.judged(writer.request, log, RunEnd("failed", "exit code 1"))
    assert summary.result == "Fail"
    assert summary.sentence.startswith(f"level 0: {where}: exit code 1, {text} (line ")
    assert "not evidence" not in summary.sentence


def test_construction_that_began_after_the_error_does_not_count(writer: Writer) -> None:
    body = ["RuntimeError: nobody knows this one", "(WorkerDict pid=91) module: 1"]
    log = writer.preflight() + writer.training(trainings(writer.request)[0], body=body, exit_code=1)
    assert writer.judged(writer.request, log, RunEnd("failed")).result == "Blocked"


@pytest.mark.parametrize(
    ("series", "why"),
    [
        ({"actor/pg_loss": [0.1] * 6 + [math.nan] * 14}, "finite metrics: actor/pg_loss is nan at step 7"),
        ({"critic/rewards/mean": [1.0] * 20}, "rewards vary: critic/rewards/mean is 1 at all 20 steps"),
        (
            {"response_length/clip_ratio": [1.0] * 20},
            "responses end before the length cap: 100% of the last steps' responses hit the cap: not strong evidence; "
            "raise the response length, then rerun",
        ),
    ],
    ids=["nan-at-step-7", "constant-reward", "cap-hit"],
)
def test_metrics_without_a_learning_signal_fail_level_5(
    series: dict[str, list[float]], why: str, writer: Writer
) -> None:
    request = request_of(writer, 5)
    smoke, long = trainings(request)
    body = [*built(long), *LORA, *writer.steps(long, series)]
    summary = writer.judged(request, writer.preflight() + writer.training(smoke) + writer.training(long, body=body))
    assert (summary.result, summary.passed_level) == ("Fail", 0)
    assert why in summary.sentence
    assert summary.sentence.endswith("; level 0 passed")
    assert lines(summary)[BACKEND] == SMOKE_PASSED
    assert lines(summary)[VARIANTS].startswith("Fail - learning signal: ")
    assert any(str(criterion).startswith(why) for criterion in summary.criteria[1].criteria)


DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


def test_a_daemon_that_is_stopped_before_anything_blocks_everything(writer: Writer) -> None:
    summary = writer.judged(request_of(writer, 1), "", RunEnd("blocked", DAEMON), log_path="")
    assert (summary.result, summary.sentence) == ("Blocked", f"the run ended as blocked: {DAEMON}{NO_EVIDENCE}")
    why = f"the run ended as blocked: {DAEMON}"
    assert lines(summary) == {
        CHECKS: f"Skipped - not run: {why}",
        IMPORT: f"Blocked - not reached: {why}",
        BACKEND: f"Skipped - LoRA + DDP: not run: {why}",
        VARIANTS: f"Skipped - save/resume: not run: {why}",
        LOG: "Fail - there is no log",
    }
    assert summary.follow_ups[0].startswith("environment fix: docker has to be able to start")


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("", "the run ended as failed, and its log does not say why"),
        ("Traceback (most recent call last):\nValueError: wrong\n", "line 2: ValueError: wrong"),
    ],
    ids=["empty log", "an error in the log"],
)
def test_a_run_that_ends_early_without_a_reason_is_explained_by_its_log(log: str, why: str, writer: Writer) -> None:
    summary = writer.judged(writer.request, log, RunEnd("failed", ""))
    assert lines(summary)[BACKEND] == f"Skipped - LoRA + DDP: not run: {why}"


def test_a_resume_with_another_rollout_is_a_pass_with_a_limitation(writer: Writer) -> None:
    request = request_of(writer, 1)
    log = whole(writer, request)
    at = log.rindex("critic/values/mean:0.2")
    summary = writer.judged(request, log[:at] + "critic/values/mean:0.3" + log[at + len("critic/values/mean:0.2") :])
    assert summary.result == "Pass"
    assert any("1 of 8 metrics differ, such as critic/values/mean: 0.2 and 0.3" in line for line in summary.limitations)


def test_a_resume_with_other_tensors_is_not_proven(writer: Writer) -> None:
    request = request_of(writer, 1)
    log = whole(writer, request)
    at = log.rindex("0" * 64)
    summary = writer.judged(request, f"{log[:at]}1{log[at + 1 :]}")
    assert summary.result == "Not proven"
    assert "see whether the optimizer's state was saved and read back" in summary.follow_ups


def test_a_daemon_that_is_stopped_in_the_middle_keeps_what_had_passed(writer: Writer) -> None:
    request = request_of(writer, 1)
    smoke, save, *_ = trainings(request)
    log = writer.preflight() + writer.training(smoke) + writer.training(save, body=[], exit_code=None)
    summary = writer.judged(request, log, RunEnd("lost", DAEMON))
    assert summary.result == "Blocked"
    assert summary.sentence == f"level 1: save: lost: {DAEMON}; level 0 passed{NO_EVIDENCE}"
    assert lines(summary)[BACKEND] == SMOKE_PASSED
    rest = "; ".join(
        f"level 1: {name}: Skipped, not run: level 1: save did not pass" for name in ("resume", "uninterrupted")
    )
    assert lines(summary)[VARIANTS] == f"Blocked - save/resume: level 1: save: Blocked, lost: {DAEMON}; {rest}"
    assert summary.passed_level == 0


def test_an_earlier_failure_wins_over_a_later_block(writer: Writer) -> None:
    request = request_of(writer, 1)
    smoke, save, *_ = trainings(request)
    vanilla = {"actor_rollout_ref.actor.megatron.vanilla_mbridge": True}
    log = writer.preflight() + writer.training(smoke, resolved=vanilla)
    log += writer.training(save, body=[], exit_code=None)
    assert writer.judged(request, log, RunEnd("lost", DAEMON)).result == "Fail"


def test_focused_bridge_checks_that_fail_fail_the_run(writer: Writer) -> None:
    log = whole(writer, writer.request).replace("bridge-checks: pass: uv run", "bridge-checks: fail: 2 failed, uv run")
    summary = writer.judged(writer.request, log)
    result = "2 failed, uv run python -m pytest -q tests/unit_tests/models"
    assert (summary.result, summary.sentence) == ("Fail", f"focused Bridge checks failed: {result}")
    assert lines(summary)[CHECKS] == f"Fail - {result}"
    assert lines(summary)[BACKEND] == SMOKE_PASSED
    assert summary.passed_level is None


@pytest.mark.parametrize(
    ("mark", "result"),
    [
        ("skipped: no such test", "Not proven"),
        ("blocked: exit code 2", "Not proven"),
        (None, "Not proven"),
        ("simulated: no uv", "Pass"),  # nothing that a simulating host shows is evidence
    ],
)
def test_bridge_checks_that_nobody_saw_pass_leave_no_pass(mark: str | None, result: str, writer: Writer) -> None:
    log = writer.preflight(bridge_checks=mark) + writer.training(trainings(writer.request)[0])
    summary = writer.judged(writer.request, log)
    assert (summary.result, summary.passed_level) == (result, 0 if result == "Pass" else None)
    assert lines(summary)[CHECKS].startswith("Skipped - ")
    assert any(line.startswith("focused Bridge checks were not run") for line in summary.limitations)
    assert any(step.startswith("run the focused Bridge checks") for step in summary.follow_ups) is (result != "Pass")


def test_a_worker_that_nobody_looked_at_is_no_pass(writer: Writer) -> None:
    log = writer.preflight(import_worker=None) + writer.training(trainings(writer.request)[0])
    summary = writer.judged(writer.request, log)
    assert summary.result == "Not proven"
    assert lines(summary)[IMPORT] == f"Not proven - driver: {BRIDGE}; Ray worker not checked"


def test_shutdown_noise_after_the_last_step_is_a_limitation_and_no_failure(writer: Writer) -> None:
    smoke = trainings(writer.request)[0]
    noise = "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated."
    log = writer.preflight() + writer.training(smoke, body=[*built(smoke), *LORA, *writer.steps(smoke), noise])
    summary = writer.judged(writer.request, log)
    assert summary.result == "Pass"
    line = next(at for at, text in enumerate(log.split("\n"), 1) if text == noise)
    assert summary.limitations[-1] == f"known shutdown noise after completion (level 0), such as line {line}: {noise}"


def test_all_steps_and_an_exit_code_are_no_pass(writer: Writer) -> None:
    smoke = trainings(writer.request)[0]
    body = ["module: 1", *writer.steps(smoke), "Fatal Python error: Segmentation fault"]
    summary = writer.judged(writer.request, writer.preflight() + writer.training(smoke, body=body, exit_code=139))
    assert summary.result == "Fail"
    assert "all steps are done, but the process did not exit successfully: " in summary.sentence
    assert "exit code 139" in summary.sentence


@pytest.mark.parametrize(
    ("keep", "missed"),
    [
        ("step:", "no Training Progress in the log"),
        ("Training Progress", "no metrics of global step 1"),
        ("nothing", "no Training Progress in the log; no metrics of global step 1"),
    ],
)
def test_exit_code_0_without_steps_is_no_pass(keep: str, missed: str, writer: Writer) -> None:
    smoke = trainings(writer.request)[0]
    body = [*built(smoke), *LORA, *(line for line in writer.steps(smoke) if keep in line)]
    summary = writer.judged(writer.request, writer.preflight() + writer.training(smoke, body=body))
    assert (summary.result, f"training steps: {missed}" in summary.sentence) == ("Not proven", True)


def test_steps_that_are_seen_to_end_early_fail_although_the_exit_code_is_0(writer: Writer) -> None:
    request = request_of(writer, 5)
    smoke, long = trainings(request)
    body = [*built(long), *LORA, *writer.steps(replace(long, steps=18))]
    log = writer.preflight() + writer.training(smoke) + writer.training(long, body=body)
    summary = writer.judged(request, log)
    assert summary.result == "Fail"
    assert "training steps: Training Progress is 18/18, not 20/20; no metrics of global step 20" in summary.sentence


def test_a_log_that_is_not_whole_is_no_pass(writer: Writer) -> None:
    ended = RunEnd("passed", log_error="the disk is full")
    summary = writer.judged(writer.request, whole(writer, writer.request), ended)
    assert (summary.result, summary.passed_level) == ("Not proven", None)
    assert lines(summary)[LOG] == "Fail - /runs/1/log: the disk is full"


def test_a_run_that_failed_for_what_no_criterion_sees_is_no_pass(writer: Writer) -> None:
    summary = writer.judged(writer.request, whole(writer, writer.request), RunEnd("failed", "exit code 4"))
    assert (summary.result, summary.sentence) == ("Not proven", "the run ended as failed: exit code 4")


def test_the_level_below_is_named_where_the_asked_one_was_blocked(writer: Writer) -> None:
    request = request_of(writer, 3)
    smoke, fsdp = trainings(request)
    body = ["OSError: [Errno 28] No space left on device"]
    log = writer.preflight() + writer.training(smoke) + writer.training(fsdp, body=body, exit_code=1)
    summary = writer.judged(request, log, RunEnd("failed"))
    assert (summary.result, summary.passed_level) == ("Blocked", 0)
    assert summary.sentence.endswith(f"; level 0 passed{NO_EVIDENCE}")


def test_reductions_are_limitations_and_the_checkpoint_says_what_it_is(writer: Writer) -> None:
    request = replace(writer.request, dummy_config="/c.json", no_reward_model=True, enforce_eager=True)
    summary = writer.judged(request, whole(writer, request))
    assert summary.checkpoint == "dummy config /c.json, MODEL_ID=Qwen/Qwen2.5-0.5B, resolved to /models/qwen"
    assert [line.split(":")[0] for line in summary.limitations[:3]] == [
        "dummy config",
        "reward model disabled",
        "enforce_eager",
    ]


def test_evidence_has_commits_dirty_files_and_the_exact_commands(writer: Writer) -> None:
    summary = writer.judged(writer.request, whole(writer, writer.request), image="verlai/verl:vllm", host="h100a")
    assert [(item.name, item.lines[:3]) for item in summary.evidence[:3]] == [
        ("Bridge repo", ("abc1234, no dirty files",)),
        ("verl repo", ("def5678, no dirty files",)),
        (
            "Command",
            (
                "invoke verl",
                "image verlai/verl:vllm, host h100a",
                "level 0: bash tests/special_e2e/run_ppo_trainer_megatron.sh",
            ),
        ),
    ]
    assert "VANILLA_MBRIDGE=False" in summary.evidence[3].lines[0]
