#!/usr/bin/env bash
# Trains a pretend model by PPO. Every setting below can be given as a variable of its name; further words are Hydra's.
set -xeuo pipefail

# An image's own Megatron-LM comes first, as with the real one.
export PYTHONPATH="/workspace/Megatron-LM${PYTHONPATH:+:${PYTHONPATH}}"
export VERL_LOGGING_LEVEL=INFO

NUM_GPUS=${NUM_GPUS:-8}
ENGINE=${ENGINE:-vllm}

# Every Python runs in the environment of uv.lock, which uv makes in .venv; VERL_USE_UV=0 takes the python3 on PATH.
LAUNCH=(python3)
RAY=(ray_kwargs.ray_init.runtime_env.py_executable=null)
if [ "${VERL_USE_UV:-1}" != 0 ] && [ "${DEVICE:-gpu}" = gpu ]; then
    UV_EXTRAS=(--extra "${ENGINE}" --extra megatron --extra math)
    LAUNCH=(uv run --frozen --all-packages "${UV_EXTRAS[@]}" python3)
    RAY=(ray_kwargs.ray_init.runtime_env.py_executable="uv -v run --frozen --all-packages ${UV_EXTRAS[*]}")
fi

MODEL_ID=${MODEL_ID:-tiny/policy}
MODEL_PATH=${MODEL_PATH:-${HOME}/models/${MODEL_ID}}
RM_MODEL_PATH=${RM_MODEL_PATH:-${HOME}/models/tiny/reward}

USE_DUMMY_MODEL=${USE_DUMMY_MODEL:-False}
DUMMY_MODEL_PATH=${DUMMY_MODEL_PATH:-${HOME}/dummy_models/${MODEL_ID}}
if [ "$USE_DUMMY_MODEL" = True ]; then
    "${LAUNCH[@]}" scripts/init_random_model.py \
        --hf_model_path "$MODEL_PATH" \
        --new_config_path "${DUMMY_MODEL_CONFIG_PATH}" \
        --output_path "$DUMMY_MODEL_PATH"
    MODEL_PATH=$DUMMY_MODEL_PATH
fi

TRAIN_FILES=${TRAIN_FILES:-${HOME}/data/gsm8k/train.parquet}
VAL_FILES=${VAL_FILES:-${HOME}/data/gsm8k/test.parquet}
ADV_ESTIMATOR=${ADV_ESTIMATOR:-gae}
VAL_BEFORE_TRAIN=${VAL_BEFORE_TRAIN:-False}
TEST_FREQ=${TEST_FREQ:--1}
RESUME_MODE=${RESUME_MODE:-disable}
SAVE_FREQ=${SAVE_FREQ:--1}
TOTAL_TRAIN_STEPS=${TOTAL_TRAIN_STEPS:-1}

LORA_RANK=${LORA_RANK:-0}
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LORA_TARGET_MODULES=${LORA_TARGET_MODULES:-"['linear_qkv','linear_proj','linear_fc1','linear_fc2']"}
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-512}
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-512}

COMMON_PP=${COMMON_PP:-2}
COMMON_VPP=${COMMON_VPP:-2}
COMMON_CP=${COMMON_CP:-2}
COMMON_TP=${COMMON_TP:-2}
COMMON_EP=${COMMON_EP:-1}
COMMON_ETP=${COMMON_ETP:-1}
INFER_TP=${INFER_TP:-$COMMON_TP}

ALL_OFFLOAD=${ALL_OFFLOAD:-True}
USE_MBRIDGE=${USE_MBRIDGE:-True}
VANILLA_MBRIDGE=${VANILLA_MBRIDGE:-False}
if [ "${TINY_VERL_FAILURE:-}" = vanilla ]; then
    VANILLA_MBRIDGE=True
fi
VALUE_VANILLA_MBRIDGE=${VALUE_VANILLA_MBRIDGE:-$VANILLA_MBRIDGE}
USE_MEGATRON_FSDP=${USE_MEGATRON_FSDP:-False}
ROUTING_REPLAY_MODE=${ROUTING_REPLAY_MODE:-disabled}

exp_name="$(basename "${MODEL_ID,,}")-megatron-gsm8k-minimal"

common_params=(
    algorithm.adv_estimator="${ADV_ESTIMATOR}"
    data.train_files="${TRAIN_FILES}"
    data.val_files="${VAL_FILES}"
    data.train_batch_size=16
    data.max_prompt_length="${MAX_PROMPT_LENGTH}"
    data.max_response_length="${MAX_RESPONSE_LENGTH}"
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.actor.megatron.router_replay.mode="${ROUTING_REPLAY_MODE}"
    actor_rollout_ref.rollout.name="${ENGINE}"
    actor_rollout_ref.rollout.tensor_model_parallel_size="${INFER_TP}"
    actor_rollout_ref.rollout.n=4
    critic.model.path="${MODEL_PATH}"
    critic.optim.lr=2e-5
    reward.reward_model.enable=True
    reward.reward_model.model_path="${RM_MODEL_PATH}"
    reward.reward_model.rollout.name="${ENGINE}"
    reward.reward_model.rollout.tensor_model_parallel_size="${INFER_TP}"
    trainer.logger=console
    trainer.project_name=verl-test
    trainer.experiment_name="${exp_name}"
    trainer.nnodes=1
    trainer.n_gpus_per_node="${NUM_GPUS}"
    trainer.val_before_train="${VAL_BEFORE_TRAIN}"
    trainer.test_freq="${TEST_FREQ}"
    trainer.save_freq="${SAVE_FREQ}"
    trainer.resume_mode="${RESUME_MODE}"
    trainer.total_training_steps="${TOTAL_TRAIN_STEPS}"
)
for model in actor_rollout_ref.model critic.model; do
    common_params+=(
        "$model.lora.rank=${LORA_RANK}"
        "$model.lora.alpha=${LORA_ALPHA}"
        "$model.lora.target_modules=${LORA_TARGET_MODULES}"
    )
done
for role in actor_rollout_ref.actor actor_rollout_ref.ref critic; do
    vanilla=$VANILLA_MBRIDGE
    if [ "$role" = critic ]; then
        vanilla=$VALUE_VANILLA_MBRIDGE
    fi
    common_params+=(
        "$role.megatron.use_mbridge=${USE_MBRIDGE}"
        "$role.megatron.vanilla_mbridge=${vanilla}"
        "$role.megatron.use_megatron_fsdp=${USE_MEGATRON_FSDP}"
        "$role.megatron.tensor_model_parallel_size=${COMMON_TP}"
        "$role.megatron.pipeline_model_parallel_size=${COMMON_PP}"
        "$role.megatron.virtual_pipeline_model_parallel_size=${COMMON_VPP}"
        "$role.megatron.context_parallel_size=${COMMON_CP}"
        "$role.megatron.expert_model_parallel_size=${COMMON_EP}"
        "$role.megatron.expert_tensor_parallel_size=${COMMON_ETP}"
        "$role.megatron.param_offload=${ALL_OFFLOAD}"
    )
done

"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    --config-path=config \
    --config-name=ppo_megatron_trainer.json \
    "${common_params[@]}" "${RAY[@]}" "$@"
