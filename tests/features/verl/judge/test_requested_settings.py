"""Which settings a training asks for."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.judge.requested_settings import requested_settings
from ci_tasks.features.verl.levels.levels import Training

# In the shape of verl's wrapper.
SCRIPT = """
COMMON_TP=${COMMON_TP:-2}   # of all roles
TRAIN_TP=${TRAIN_TP:-$COMMON_TP}
INFER_TP=${INFER_TP:-${COMMON_TP}}
LORA_RANK=${LORA_RANK:-0}
batch=$((LORA_RANK * 2))
MODE="sync"
MODEL_PATH=${MODEL_PATH:-${HOME}/models}
if [ "$USE_DUMMY_MODEL" = "True" ]; then
    MODEL_PATH="${DUMMY_MODEL_PATH}"
fi
common_params=(
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TRAIN_TP
    actor_rollout_ref.rollout.tensor_model_parallel_size="${INFER_TP}"
    +actor_rollout_ref.model.lora.rank=${LORA_RANK} \\
    actor_rollout_ref.actor.ppo_mini_batch_size=${batch}
    actor_rollout_ref.rollout.mode=${MODE}
    actor_rollout_ref.model.path="${MODEL_PATH}"
    critic.megatron.tensor_model_parallel_size=${CRITIC_TP:-$TRAIN_TP}
)
elif other
    +actor_rollout_ref.ref.megatron.tensor_model_parallel_size=${TRAIN_TP}
"""
TP = "tensor_model_parallel_size"


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        (
            {"COMMON_TP": "4"},
            {f"actor_rollout_ref.actor.megatron.{TP}": "4", f"critic.megatron.{TP}": "4"}
            | {f"actor_rollout_ref.rollout.{TP}": "4"},
        ),
        ({"INFER_TP": "8"}, {f"actor_rollout_ref.rollout.{TP}": "8"}),
        ({"LORA_RANK": "4"}, {"actor_rollout_ref.model.lora.rank": "4"}),
        # What only a shell knows, or a condition decides, is not compared; nor what nobody asked for.
        ({"MODEL_PATH": "/m", "MODE": "async"}, {}),
        # A variable that this wrapper does not read asks for the setting that it stands for.
        ({"SAVE_FREQ": "1"}, {"trainer.save_freq": "1"}),
    ],
)
def test_a_variable_asks_what_the_wrapper_makes_of_it(env: dict[str, str], asked: dict[str, str]) -> None:
    found = requested_settings(Training("t", 0, env), SCRIPT)
    assert {dotted: setting.value for dotted, setting in found.items()} == asked
    assert {setting.by for setting in found.values()} <= set(env)


def test_the_last_override_wins_over_variables() -> None:
    training = Training("t", 0, {"LORA_RANK": "4"}, overrides=("++actor_rollout_ref.model.lora.rank=8", "a.b=${c}"))
    found = requested_settings(training, SCRIPT)
    assert {dotted: setting.value for dotted, setting in found.items()} == {"actor_rollout_ref.model.lora.rank": "8"}
