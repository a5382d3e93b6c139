"""From a log's bytes to facts, and verl's metric lines as the core reads them by the registry, for a person."""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from typing import Any

import pytest

from ci_tasks.features.verl.judge.training_log import PrintedSettings, TrainingFacts, flat, read_run
from ci_tasks.features.verl.judge.training_run import MISSING, asked_settings, equals_asked, unlike
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from ci_tasks.logs.reading import metrics_summary
from ci_tasks.registry import metric_formats
from tests.features.verl.judge.conftest import Writer

SMOKE = trainings(LevelRequest(0))[0]


def test_a_training_is_read_between_its_marks(writer: Writer) -> None:
    log = writer.preflight() + writer.training(SMOKE)
    facts = read_run([log.encode()])
    training = facts.trainings["level 0"]
    assert facts.preflight["data"].text == "/data/gsm8k/train.parquet"
    assert training.exit_code == 0
    vanilla = training.settings.get("actor_rollout_ref.actor.megatron.vanilla_mbridge")
    assert vanilla is False
    assert (training.progress, training.said["trainable"].value) == ((1, 1), "8,192")
    assert training.metrics[1]["critic/rewards/mean"] == 0.23
    assert log.split("\n")[training.said["model"].line_no - 1].endswith("dropout=0.0")
    assert training.error is None


WORKER = "(WorkerDict pid=90) "
STEP_1 = "(TaskRunner pid=71) step:1 - actor/pg_loss:0.5"
HANDLED = [
    "(AgentLoop pid=7) ERROR:2026-01-02 03:04:05,6:Traceback (most recent call last):",
    '(AgentLoop pid=7)   File "/w/env.py", line 4, in update',
    "(AgentLoop pid=7) TypeError: cannot unpack non-iterable NoneType object",
]
OPTIONAL = [
    f"{WORKER}Import of X from transformer_engine failed with: Traceback (most recent call last):",
    f'{WORKER}  File "/b/src/megatron/bridge/utils/import_utils.py", line 211, in safe_import_from',
    f"{WORKER}AttributeError: module 'transformer_engine' has no attribute 'X'",
]
# Lines after which a training ended with exit code 1, and the part of the one that is its reason, "" for none.
REASONS = [
    ([f"{WORKER}  Format validation: FAIL"], ""),
    ([STEP_1], ""),
    ([*HANDLED, STEP_1], ""),
    ([STEP_1, *HANDLED], "TypeError: cannot unpack"),
    ([f"{WORKER}ValueError: x"], "ValueError: x"),
    (OPTIONAL, ""),
    ([*OPTIONAL, f"{WORKER}ValueError: x", *OPTIONAL], "ValueError: x"),
]


def facts_of(writer: Writer, body: list[str], before: str = "", after: str = "") -> TrainingFacts:
    log = before + writer.training(SMOKE, body=body, exit_code=1) + after
    return read_run([log.encode()]).trainings["level 0"]


@pytest.mark.parametrize(("body", "reason"), REASONS)
def test_only_an_error_that_nobody_handled_is_a_reason(body: list[str], reason: str, writer: Writer) -> None:
    error = facts_of(writer, body).error
    assert (error is not None, reason in (error.text if error else "")) == (bool(reason), True), error


BEGIN = "ci-tasks-verl: begin: a"


def facts_of_a(*lines: str, proofs: Sequence[str] = ()) -> TrainingFacts:
    return read_run(["\n".join([BEGIN, *lines, ""]).encode()], proofs).trainings["a"]


def test_a_number_of_thousands_of_digits_is_none() -> None:
    digits = "9" * 5000
    training = facts_of_a(
        f"step:{digits} - a:1", f"Training Progress: 1%|x| {digits}/2", f"ci-tasks-verl: end: a: {digits}"
    )
    assert (training.metrics, training.progress, training.exit_code) == ({}, None, None)


def test_the_shells_trace_is_no_mark_no_proof_and_no_resolved_setting() -> None:
    trace = ("+ echo 'ci-tasks-verl: end: a: 0'", "+ python3 -m verl.trainer.main_ppo a.feature=on b.c=1", "the end")
    training = facts_of_a(*trace, proofs=["feature"])
    assert training.exit_code is None and training.proofs == {"feature": None}
    assert not training.settings


def test_a_proof_is_found_in_a_line_of_any_words_behind_rays_prefix() -> None:
    proofs = facts_of_a("(WorkerDict pid=3) replay of 4 layers", proofs=[r"^replay of \d+ layers$", "never"]).proofs
    assert [line and line.line_no for line in proofs.values()] == [2, None]


def test_an_error_has_its_line_in_the_whole_log_and_is_of_its_own_training(writer: Writer) -> None:
    body = ["Traceback (most recent call last):", '  File "/v/a.py", line 1, in f', "KeyError: 'lost'"]
    log = "KeyError: 'of another'\n" + writer.training(SMOKE, body=body, exit_code=1)
    error = facts_of(writer, body, "KeyError: 'of another'\n", "KeyError: 'later'\n").error
    assert error is not None and error.line_no is not None
    assert log.split("\n")[error.line_no - 1] == "KeyError: 'lost'"
    assert facts_of(writer, ["nothing to see"], after="KeyError: 'later'\n").error is None


def test_a_baseline_is_read_from_any_log_of_verls_and_numbers_without_end_are_not_all_kept(writer: Writer) -> None:
    for log in ("\n".join(writer.steps(SMOKE)), writer.training(SMOKE)):
        found = read_run([log.encode()], names=["baseline"]).trainings
        assert [one.metrics[1]["actor/pg_loss"] for one in found.values() if one.metrics] == [0.5]
    again = [line for line in writer.training(SMOKE).splitlines() if "ci-tasks-verl" not in line]
    log = "".join(writer.training(one, body=again) for one in trainings(LevelRequest(1))[:2])
    divided = read_run([log.encode()], names=["a", "b"]).trainings
    assert [*divided] == ["level 0", "level 1: save"], "by its marks, whatever is printed twice"
    assert len(facts_of_a(*(f"step:{step} - actor/pg_loss:1" for step in range(3000))).metrics) == 1000


VERL = (
    b"(TaskRunner pid=9) step:30 - actor/pg_loss:-2.47e-06 - actor/grad_norm:0.91 - val-core/gsm8k/acc/mean@1:0.4761"
    b" - critic/score/mean:0.4677 - critic/rewards/max:1.0 - critic/rewards/mean:np.float64(0.46777) - timing_s/gen:5"
)


METRIC_LINES = [
    (VERL, "step 30, rewards 0.4678"),
    (b"step:0 - val-core/openai/gsm8k/acc/mean@1:0.25 - val-aux/num_turns/mean:2.0", "step 0, acc 0.25"),
    (b"step:3 - critic/score/mean:0.5 - actor/pg_loss:0.1", "step 3, score 0.5"),
    (b"step:3 - actor/pg_loss:0.1 - actor/lr:1e-06", "step 3, pg_loss 0.1"),
    (b"2026-11-21 12:00 - INFO - step:by step", ""),
]


@pytest.mark.parametrize(("line", "expected"), METRIC_LINES)
def test_a_line_of_metrics_in_short(line: bytes, expected: str) -> None:
    assert metrics_summary(line, metric_formats()) == expected


# -- verl's settings as its log shows them -----------------------------------------------------------------------------


EQUAL: list[tuple[str, Any]] = [
    ("False", False), ("false", False), ("null", None), ("2", 2), ("2", 2.0), ("1e-6", 1e-06), ("-1", -1),
    ("vllm", "vllm"), ("'error'", "error"), ("False", "False"), ("['a','b']", ["a", "b"]),
]  # fmt: skip
# A setting that became a number is not what was asked.
OTHER: list[tuple[str, Any]] = [("False", True), ("False", 0), ("1", None), ("vllm", "sglang"), ("disabled", MISSING)]


def test_a_setting_is_compared_with_the_requested_text() -> None:
    assert [pair for pair in EQUAL + OTHER if equals_asked(*pair)] == EQUAL


def test_settings_are_read_although_other_processes_write_between_their_lines() -> None:
    config = {
        "actor_rollout_ref": {"model": {"path": "/m{odel}", "text": "it's [a] " * 30}},
        "trainer": {"limit": 1e999},
    }
    block = PrintedSettings("TaskRunner pid=1", 1)
    for line in pprint.pformat(config).splitlines():
        assert block.feed("TaskRunner pid=1", line)
        assert not block.feed("WorkerDict pid=2", " 'trainer': {'limit': 3}}")
        assert not block.open or not block.feed("TaskRunner pid=1", "a line of its own that is no part")
    assert not block.open
    assert block.value() == flat(config)


@pytest.mark.parametrize(
    "noise",
    [
        ["/v/x.py:3: UserWarning: x", '  "use_fast" is deprecated, see {'],
        ["INFO 11-23 02:00:00 [config.py:1] {'a': [1"],
        ["Traceback (most recent call last):", '  File "/a.py", line 3, in f', "    x = {1", "ValueError: x"],
    ],
    ids=["warning with a quote", "logger", "traceback"],
)
def test_what_the_same_process_writes_between_the_lines_is_left_out(noise: list[str]) -> None:
    config = {"actor_rollout_ref": {"actor": {f"name_{number}": "x" * 30 for number in range(9)}, "n": [1, -1]}}
    lines = pprint.pformat(config).splitlines()
    for at in range(1, len(lines)):
        block = PrintedSettings("", 1)
        for line in [*lines[:at], *noise, *lines[at:]]:
            block.feed("", line)
        assert block.value() == flat(config)


ACTOR, REF, CRITIC = "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.megatron.", "critic.megatron."
TP = "tensor_model_parallel_size"


def test_the_wrapper_passes_on_to_other_roles_what_has_no_variable_of_theirs_and_hydra_takes_the_last() -> None:
    env = {"COMMON_TP": "2", "CRITIC_TP": "4", "VANILLA_MBRIDGE": "False", "VALUE_VANILLA_MBRIDGE": "True"}
    asked = asked_settings(Training("", 0, env, overrides=(f"+{ACTOR}{TP}=8", "a.b=$X", "hydra.run.dir=/x")))
    assert asked == {
        f"{ACTOR}{TP}": "8",
        f"{REF}{TP}": "2",
        f"{ACTOR}vanilla_mbridge": "False",
        f"{REF}vanilla_mbridge": "False",
        f"{CRITIC}vanilla_mbridge": "True",
    }
    own = asked_settings(Training("", 4, env, script="examples/x.sh"))
    assert f"{REF}{TP}" not in own, "of another script nobody knows"


MODEL, FILES, SEED = "actor_rollout_ref.model.path", "data.train_files", "actor_rollout_ref.actor.data_loader_seed"
OURS = {MODEL: "/m/Qwen/Q", FILES: "/d/gsm8k/train.parquet", SEED: 42, "data.train_batch_size": 16, "a.lr": 1}


UNLIKE = [
    ("a.lr", 2, ""),  # it may be the change itself
    (MODEL, "/else/Qwen/Q", ""),
    (FILES, "/else/gsm8k/train.parquet", ""),
    (MODEL, "/m/Qwen/Z", "baseline Qwen/Z, here Qwen/Q"),
    (FILES, "/d/math/train.parquet", "baseline math/train.parquet, here gsm8k/train.parquet"),
    ("data.train_batch_size", 32, "baseline 32, here 16"),
    ("data.max_response_length", 1024, "baseline 1024, here not in the settings"),
    (SEED, 1, "baseline 1, here 42"),
]


@pytest.mark.parametrize(("name", "value", "line"), UNLIKE)
def test_another_model_data_batch_length_or_seed_is_named(name: str, value: object, line: str) -> None:
    assert unlike(OURS, {**OURS, name: value}) == ([f"{name}: {line}"] if line else [])
