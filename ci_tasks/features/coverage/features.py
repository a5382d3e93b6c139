"""Flags → what they exercise, in the field's words. A flag that is not known here is shown as itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ci_tasks.features.coverage.training import TrainingLaunch, WrittenConfigs

# (flag, what its value must contain, words); of a flag the first that fits counts. `{}` is the last part of the value.
_WORDS = (
    ("--sglang-moe-a2a-backend", "deepep", "DeepEP"),
    ("--moe-enable-deepep", "", "DeepEP"),
    ("--sglang-enable-dp-attention", "", "DP attention"),
    ("--sglang-enable-dp-lm-head", "", "DP LM head"),
    ("--sglang-speculative-algorithm", "", "{} speculative decoding"),
    ("--sglang-disaggregation-transfer-backend", "", "{}"),
    ("--hf-checkpoint", "(?i)fp8", "FP8 rollout"),
    ("--optimizer-cpu-offload", "", "CPU optimizer offload"),
    ("--use-precision-aware-optimizer", "", "precision-aware optimizer"),
    ("--use-stateless-adam", "", "stateless Adam"),
    ("--use-stateless-optimizer", "", "stateless optimizer"),
    ("--optimizer-placement", "", "optimizer on {}"),
    ("--use-tis", "", "TIS"),
    ("--use-routing-replay", "", "routing replay"),
    ("--use-rollout-routing-replay", "", "rollout routing replay"),
    ("--calculate-per-token-loss", "", "per-token loss"),
    ("--num-critic-only-steps", "", "critic-only warmup (steps: {})"),
    ("--use-critic", "", "critic"),
    ("--partial-rollout", "", "partial rollout"),
    ("--mask-offpolicy-in-partial-rollout", "", "off-policy masking in partial rollout"),
    ("--over-sampling-batch-size", "", "over-sampling"),
    ("--dynamic-sampling-filter-path", "", "dynamic sampling"),
    ("--use-fault-tolerance", "", "fault tolerance"),
    ("--enable-mtp-training", "", "MTP training"),
    ("--debug-rollout-only", "", "rollout without training"),
    ("--debug-train-only", "", "training without rollout"),
    ("--save-debug-rollout-data", "", "debug rollout data save"),
    ("--load-debug-rollout-data", "", "training from saved rollout data"),
    ("--dump-details", "", "rollout and train debug dumps"),
    ("--save", "", "checkpoint save"),
    ("--async-save", "", "async checkpoint save"),
    ("--release-train", "", "release of the training actors between steps"),
    ("--rollout-external-engine-addrs", "", "external engine discovery"),
    ("--sglang-enable-deterministic-inference", "", "deterministic inference"),
    ("--deterministic-mode", "", "deterministic training"),
    ("--dsa", "", "DSA"),
    ("--eval-interval", "", "evaluation"),
    ("--rollout-data-transport", "", "rollout data through {}"),
    ("--multimodal-keys", "", "multimodal input"),
    ("--rollout-function-path", "fully_async", "fully-async rollout"),
    ("--rollout-function-path", "", "rollout function {}"),
    ("--custom-generate-function-path", "streaming", "streaming rollout"),
    ("--custom-generate-function-path", "", "generate function {}"),
    ("--custom-rm-path", "on_policy_distillation", ""),
    ("--custom-rm-path", "", "reward function {}"),
    ("--custom-reward-post-process-path", "on_policy_distillation", ""),
    ("--custom-reward-post-process-path", "", "reward post-processing {}"),
    ("--custom-tis-function-path", "", "TIS function {}"),
    ("--custom-megatron-before-log-prob-hook-path", "", "log-prob hook {}"),
)
_KNOWN = {flag for flag, _, _ in _WORDS}
# Value-less flags of every training: shapes, numerics and housekeeping.
_PLUMBING = {
    *("--sequence-parallel", "--apply-chat-template", "--rollout-shuffle", "--balance-data"),
    *("--attention-softmax-in-fp32", "--accumulate-allreduce-grads-in-fp32", "--sglang-enable-metrics", "--colocate"),
    *("--use-kl-loss", "--overlap-cpu-optimizer-d2h-h2d", "--use-wandb", "--disable-wandb-random-suffix"),
    *("--normalize-advantages", "--update-weight-disk-keep-files", "--sglang-disable-piecewise-cuda-graph"),
    *("--use-dynamic-batch-size", "--use-opd", "--offload-rollout", "--offload-train"),
}


def features(training: TrainingLaunch, configs: WrittenConfigs) -> Iterator[str]:
    """What a training exercises besides its model, algorithm, layout and placement."""
    yield from _together(training)
    yield from _by_config(training, configs)
    seen = set()
    for flag, pattern, words in _WORDS:
        value = training.value(flag)
        if flag in training.flags and flag not in seen and re.search(pattern, value):
            yield words.format(_named(value))
            seen.add(flag)
    if "--num-layers" not in training.flags:  # one that spells out its model has too many switches to tell apart
        shown = ("--ci-", "--no-offload")
        for flag, values in training.flags.items():
            if not values and not flag.startswith(shown) and flag not in _KNOWN | _PLUMBING:
                yield flag


def _together(training: TrainingLaunch) -> Iterator[str]:
    """What several flags say together."""
    flags = training.flags
    for part in ("rollout", "train"):
        if f"--no-offload-{part}" not in flags and f"--offload-{part}" in flags:
            yield f"{part} offload"
    # Engines that share GPUs with the trainer leave them to it, if nothing else is said.
    if "--colocate" in flags and not any(flag.startswith("--no-offload") for flag in flags):
        yield "offload/onload"
    if training.value("--update-weight-transport") == "disk":
        yield f"{training.value('--update-weight-mode', 'full')} weight update through disk"
    if "--use-opd" in flags:
        yield f"on-policy distillation ({training.value('--opd-type', 'sglang')} teacher)"
    # `--load` of what `--hf-checkpoint` names starts from the beginning.
    if "--load" in flags and training.value("--load") != training.value("--hf-checkpoint"):
        yield "checkpoint load"
    if "async" in training.script:
        yield f"async training ({training.script})"
    if training.number("--actor-num-nodes") > 1:
        yield f"{training.number('--actor-num-nodes')} nodes"


def _by_config(training: TrainingLaunch, configs: WrittenConfigs) -> Iterator[str]:
    """What the test writes for its trainings, or starts beside them, says."""
    flags, groups, external = training.flags, configs.groups, "--rollout-external-engine-addrs" in training.flags
    types = {str(group.get("worker_type")) for group in groups}
    modes = {mode for server in configs.servers for mode in server.get("--disaggregation-mode", ())}
    in_config = "--sglang-config" in flags
    if "--prefill-num-servers" in flags or (in_config and "prefill" in types) or (external and "prefill" in modes):
        yield "PD"
    if "--megatron-config-path" in flags:
        roles = sorted(str(item["role"]) for item in configs.section("megatron") if item.get("role"))
        yield f"{' + '.join(roles)} config".strip()
    for server in configs.servers:
        yield from map(_named, server.get("--disaggregation-transfer-backend", ()))
    if "--use-opd" in flags and configs.servers:
        yield "teacher server started by the test"
    if external and configs.servers:
        yield "engines launched before the training"
    if not in_config:
        return
    yield "--sglang-config"
    models = configs.section("sglang")
    sizes = {group.get("num_gpus_per_engine") for group in groups if group.get("worker_type") != "placeholder"}
    said = {
        "several SGLang models": len(models) > 1,
        "frozen SGLang model": any(model.get("update_weights") is False for model in models),
        "several regular groups": len([group for group in groups if group.get("worker_type") == "regular"]) > 1,
        "placeholder group": "placeholder" in types,
        "heterogeneous engine TP": len(sizes - {None}) > 1,
    }
    yield from (words for words, is_so in said.items() if is_so)


def _named(value: str) -> str:
    """The last part of a path of modules, or a value, as the field writes it."""
    last = value if "⟨" in value else value.rpartition(".")[2]
    return {"mooncake": "Mooncake", "nixl": "NIXL"}.get(last, last)
