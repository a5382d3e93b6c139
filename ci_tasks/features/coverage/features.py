"""Flags → what they exercise, in the field's words. A flag that is not known here is shown as itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ci_tasks.features.coverage.training import TrainingLaunch, WrittenConfigs

# Flag → words. `{}` is its value.
_WORDS: Mapping[str, str] = {
    "--moe-enable-deepep": "DeepEP",
    "--sglang-enable-dp-attention": "DP attention",
    "--sglang-enable-dp-lm-head": "DP LM head",
    "--sglang-speculative-algorithm": "{} speculative decoding",
    "--optimizer-cpu-offload": "CPU optimizer offload",
    "--use-precision-aware-optimizer": "precision-aware optimizer",
    "--use-stateless-adam": "stateless Adam",
    "--use-tis": "TIS",
    "--use-routing-replay": "routing replay",
    "--use-rollout-routing-replay": "rollout routing replay",
    "--calculate-per-token-loss": "per-token loss",
    "--num-critic-only-steps": "critic-only warmup (steps: {})",
    "--partial-rollout": "partial rollout",
    "--mask-offpolicy-in-partial-rollout": "off-policy masking in partial rollout",
    "--over-sampling-batch-size": "over-sampling",
    "--dynamic-sampling-filter-path": "dynamic sampling",
    "--use-fault-tolerance": "fault tolerance",
    "--enable-mtp-training": "MTP training",
    "--debug-rollout-only": "rollout without training",
    "--debug-train-only": "training without rollout",
    "--save-debug-rollout-data": "debug rollout data save",
    "--load-debug-rollout-data": "training from saved rollout data",
    "--dump-details": "rollout and train debug dumps",
    "--save": "checkpoint save",
    "--async-save": "async checkpoint save",
    "--release-train": "release of the training actors between steps",
    "--rollout-external-engine-addrs": "external engine discovery",
    "--sglang-enable-deterministic-inference": "deterministic inference",
    "--deterministic-mode": "deterministic training",
    "--dsa": "DSA",
    "--use-stateless-optimizer": "stateless optimizer",
    "--eval-interval": "evaluation",
    "--rollout-data-transport": "rollout data through {}",
    "--optimizer-placement": "optimizer on {}",
    "--use-critic": "critic",
    "--multimodal-keys": "multimodal input",
}
# Flags that name a function: the words if its path has the key in it, else what stands under "".
_FUNCTIONS: Mapping[str, Mapping[str, str]] = {
    "--rollout-function-path": {"fully_async": "fully-async rollout", "": "rollout function {}"},
    "--custom-generate-function-path": {"streaming": "streaming rollout", "": "generate function {}"},
    "--custom-rm-path": {"on_policy_distillation": "", "": "reward function {}"},
    "--custom-reward-post-process-path": {"on_policy_distillation": "", "": "reward post-processing {}"},
    "--custom-tis-function-path": {"": "TIS function {}"},
    "--custom-megatron-before-log-prob-hook-path": {"": "log-prob hook {}"},
}
# Value-less flags of every training: shapes, numerics and housekeeping.
_PLUMBING = {
    *("--sequence-parallel", "--apply-chat-template", "--rollout-shuffle", "--balance-data"),
    *("--attention-softmax-in-fp32", "--accumulate-allreduce-grads-in-fp32", "--sglang-enable-metrics", "--colocate"),
    *("--use-kl-loss", "--overlap-cpu-optimizer-d2h-h2d", "--use-wandb", "--disable-wandb-random-suffix"),
    *("--normalize-advantages", "--update-weight-disk-keep-files", "--sglang-disable-piecewise-cuda-graph"),
    *("--use-dynamic-batch-size", "--use-opd", "--offload-rollout", "--offload-train"),
}


def features(training: TrainingLaunch, configs: WrittenConfigs) -> list[str]:
    """What a training exercises besides its model, algorithm, layout and placement; each named once."""
    descriptions = [*_offload(training), *_by_config(training, configs), *_by_value(training)]
    descriptions += [*_by_flag(training), *_unknown(training)]
    return [description for description in dict.fromkeys(descriptions) if description]


def disaggregated_prefill(training: TrainingLaunch, configs: WrittenConfigs) -> bool:
    """Whether prefill and decode have engines of their own (PD)."""
    modes = {mode for server in configs.servers for mode in server.get("--disaggregation-mode", ())}
    return (
        "--prefill-num-servers" in training.flags
        or ("--sglang-config" in training.flags and "prefill" in _worker_types(configs))
        or ("--rollout-external-engine-addrs" in training.flags and "prefill" in modes)
    )


def _offload(training: TrainingLaunch) -> Iterator[str]:
    """Engines that share GPUs with the trainer leave them to it, if nothing else is said."""
    for part in ("rollout", "train"):
        if f"--no-offload-{part}" not in training.flags and f"--offload-{part}" in training.flags:
            yield f"{part} offload"
    if "--colocate" in training.flags and not any(flag.startswith("--no-offload") for flag in training.flags):
        yield "offload/onload"


def _by_flag(training: TrainingLaunch) -> Iterator[str]:
    for flag, description in _WORDS.items():
        if flag in training.flags:
            yield description.format(_named(training.value(flag)))
    for flag, choices in _FUNCTIONS.items():
        path = training.value(flag)
        if path:
            description = next(description for part, description in choices.items() if part in path)
            yield description.format(path.rpartition(".")[2])


def _by_value(training: TrainingLaunch) -> Iterator[str]:
    if training.value("--sglang-moe-a2a-backend") == "deepep":
        yield "DeepEP"
    if backend := training.value("--sglang-disaggregation-transfer-backend"):
        yield _named(backend)
    if "fp8" in training.value("--hf-checkpoint").lower():
        yield "FP8 rollout"
    if training.value("--update-weight-transport") == "disk":
        yield f"{training.value('--update-weight-mode', 'full')} weight update through disk"
    if "--use-opd" in training.flags:
        yield f"on-policy distillation ({training.value('--opd-type', 'sglang')} teacher)"
    # `--load` of what `--hf-checkpoint` names starts anew.
    if "--load" in training.flags and training.value("--load") != training.value("--hf-checkpoint"):
        yield "checkpoint load"
    if "async" in training.script:
        yield f"async training ({training.script})"
    if training.number("--actor-num-nodes") > 1:
        yield f"{training.number('--actor-num-nodes')} nodes"


def _by_config(training: TrainingLaunch, configs: WrittenConfigs) -> Iterator[str]:
    if "--megatron-config-path" in training.flags:
        roles = [str(item.get("role", "")) for item in configs.section("megatron")]
        yield f"{' + '.join(sorted(role for role in roles if role))} config"
    for server in configs.servers:
        for backend in server.get("--disaggregation-transfer-backend", ()):
            yield _named(backend)
    if "--use-opd" in training.flags and configs.servers:
        yield "teacher server started by the test"
    if "--rollout-external-engine-addrs" in training.flags and configs.servers:
        yield "engines launched before the training"
    if "--sglang-config" not in training.flags:
        return
    yield "--sglang-config"
    models = configs.section("sglang")
    if len(models) > 1:
        yield "several SGLang models"
    if any(model.get("update_weights") is False for model in models):
        yield "frozen SGLang model"
    groups = _groups(configs)
    if len([group for group in groups if group.get("worker_type") == "regular"]) > 1:
        yield "several regular groups"
    if "placeholder" in _worker_types(configs):
        yield "placeholder group"
    sizes = {group.get("num_gpus_per_engine") for group in groups if group.get("worker_type") != "placeholder"}
    if len(sizes - {None}) > 1:
        yield "heterogeneous engine TP"


def _groups(configs: WrittenConfigs) -> list[Mapping[str, Any]]:
    groups = [group for model in configs.section("sglang") for group in model.get("server_groups") or []]
    return [group for group in groups if isinstance(group, Mapping)]


def _worker_types(configs: WrittenConfigs) -> set[str]:
    return {str(group.get("worker_type")) for group in _groups(configs)}


def _named(value: str) -> str:
    return {"mooncake": "Mooncake", "nixl": "NIXL"}.get(value, value)


def _unknown(training: TrainingLaunch) -> Iterator[str]:
    """Switches that are not known here. A training that spells out its model has too many of them to tell apart."""
    if "--num-layers" in training.flags:
        return
    for flag, values in training.flags.items():
        if (
            not values
            and not flag.startswith(("--ci-", "--no-offload"))
            and flag not in _WORDS
            and flag not in _PLUMBING
        ):
            yield flag
