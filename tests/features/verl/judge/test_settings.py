"""verl's settings as its log shows them."""

from __future__ import annotations

import pprint
from typing import Any

import pytest

from ci_tasks.features.verl.judge.training_log import PrintedSettings, flat
from ci_tasks.features.verl.judge.training_run import MISSING, asked_settings, equals_asked, unlike
from ci_tasks.features.verl.levels.levels import Training

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


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("a.lr", 2, ""),  # it may be the change itself
        (MODEL, "/else/Qwen/Q", ""),
        (FILES, "/else/gsm8k/train.parquet", ""),
        (MODEL, "/m/Qwen/Z", "baseline Qwen/Z, here Qwen/Q"),
        (FILES, "/d/math/train.parquet", "baseline math/train.parquet, here gsm8k/train.parquet"),
        ("data.train_batch_size", 32, "baseline 32, here 16"),
        ("data.max_response_length", 1024, "baseline 1024, here not in the settings"),
        (SEED, 1, "baseline 1, here 42"),
    ],
)
def test_another_model_data_batch_length_or_seed_is_named(name: str, value: object, line: str) -> None:
    assert unlike(OURS, {**OURS, name: value}) == ([f"{name}: {line}"] if line else [])
