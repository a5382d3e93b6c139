"""Where a training failed, whether that is evidence against the Bridge change, and what to do next: the guide's
section "Failure triage" as a table.

The guide's line is Bridge-managed construction. What fails before it is Blocked: data, reward model, Ray, rollout
engine, packages, disk, cluster. What fails in it or after it is Fail, except for what is the environment's whenever it
happens, such as a full disk, and for what says neither: a rollout engine, GPU memory, a hang or a killed process after
construction may be the change's doing or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.log_records import (
    DATA,
    DEVICES,
    DRIVER,
    MODEL,
    MODELOPT,
    RAY,
    REWARD_MODEL,
    ROOM,
    WORKER,
    LoggedFailure,
)
from ci_tasks.logs.causes import UNKNOWN
from ci_tasks.records import BLOCKED, Triage

DENSE_MODEL = "the request: expert parallelism of a dense model"
CONSTRUCTION = "Bridge-managed construction"
ALWAYS, BEFORE, NEVER = "always", "before construction", "never"
UNCLEAR_AFTER = "before construction; nobody can tell after it"


@dataclass(frozen=True)
class FailureStage:
    """A row of the table. A failure belongs to the first whose `pattern` is in its text or frames, else to the first
    whose `causes` have its cause, which may be a guess. `environment` says when it is the environment's: always,
    before construction, or never; or before it, and of what follows nobody can tell."""

    name: str
    environment: str
    follow_up: str
    causes: tuple[str, ...] = ()
    pattern: str = ""

    def matches(self, text: str) -> bool:
        return bool(self.pattern) and bool(re.search(self.pattern, text, re.IGNORECASE))


OWN_IMPORT = FailureStage(
    "the Bridge checkout's own imports",
    NEVER,
    "provider fix: the Bridge checkout does not have, or cannot load, what it imports",
    pattern=r"No module named '?megatron\.bridge\.|cannot import name .* from '?megatron\.bridge|"
    r"^\w*: ?SyntaxError|/megatron/bridge/\S* .*SyntaxError",
)
WRONG_PATH = FailureStage(
    "the import of the local Bridge checkout",
    ALWAYS,
    "environment fix: correct PYTHONPATH before trusting any result; for Ray workers pass "
    '"++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH=${PYTHONPATH}" to the wrapper',
    pattern=r"No module named '?megatron(?:\.bridge)?'?(?:$|[^.\w])",
)
STAGES = (
    OWN_IMPORT,
    WRONG_PATH,
    FailureStage(
        "ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES",
        ALWAYS,
        "environment fix: drop ROCR_VISIBLE_DEVICES in the launcher or container where CUDA_VISIBLE_DEVICES is set",
        ("rocr_conflict",),
        r"ROCR_VISIBLE_DEVICES",
    ),
    FailureStage(
        "a full disk",
        ALWAYS,
        "environment fix: move HF_HOME, HF_HUB_CACHE, and MODEL_PATH to a larger shared or node-local path, then rerun "
        "with the explicit local MODEL_PATH",
        ("disk_full",),
        r"No space left on device|Disk quota exceeded",
    ),
    FailureStage(
        DENSE_MODEL,
        ALWAYS,
        "usage: the expert variant needs a routed checkpoint; name one with --model-id or --model-path",
        pattern=r"num_moe_experts must|must be (?:set|non.?None) .*expert.?parallel",
    ),
    FailureStage(
        "verl's configuration",
        UNCLEAR_AFTER,
        "correct the settings: this verl does not have, or does not accept, the one that is named above",
        ("config_hydra",),
        r"Could not override|Could not append|is not in struct",
    ),
    FailureStage(
        "the reward model",
        ALWAYS,
        "environment fix: set RM_MODEL_PATH to a local reward model, or pass reward.reward_model.enable=False and "
        "report that as a limitation",
        ("reward_fn",),
        r"reward[_ -]?(?:model|loop|manager)|RM_MODEL_PATH|Skywork-Reward",
    ),
    FailureStage(
        "the data",
        UNCLEAR_AFTER,
        "environment fix: prepare the data with examples/data_preprocess/gsm8k.py, or set TRAIN_FILES and VAL_FILES",
        pattern=r"\.parquet|rl_dataset|/datasets/(?:load|builder)|TRAIN_FILES|VAL_FILES",
    ),
    FailureStage(
        "nvidia-modelopt",
        ALWAYS,
        "environment fix: python -m pip install --extra-index-url https://pypi.nvidia.com nvidia-modelopt",
        pattern=r"No module named '?modelopt",
    ),
    FailureStage(
        "package setup",
        ALWAYS,
        "environment fix: install what is missing in the image, as container setup, not as a change of a repository",
        ("import_error", "dependency_version_mismatch"),
        r"No module named|cannot import name",
    ),
    FailureStage(
        "the download of a model or data",
        ALWAYS,
        "environment fix: download the model once before the run, and pass MODEL_PATH",
        ("hf_download", "network_ssh"),
        r"HfHubHTTPError|LocalEntryNotFound|RepositoryNotFound|GatedRepo|OfflineMode|Max retries exceeded|ReadTimeout",
    ),
    FailureStage(
        "the container or its image",
        ALWAYS,
        "environment fix: docker has to be able to start the verlai/verl image on this host, then rerun",
        ("permission_docker",),
        r"Cannot connect to the Docker daemon|docker: Error response|manifest unknown|pull access denied",
    ),
    FailureStage(
        "the cluster",
        ALWAYS,
        "environment fix: GPUs, locks, ports or shared memory of the host, then rerun",
        ("gpu_hardware", "gpu_busy", "lock_timeout", "port_in_use", "shm_too_small"),
    ),
    FailureStage(
        "the host's or the container's memory",
        ALWAYS,
        "environment fix: more memory for the container, or fewer or smaller workers, then rerun",
        ("host_oom_killed",),
        r"running low on memory|Killed process \d|oom-kill|OOMKilled|memory cgroup out of memory",
    ),
    FailureStage(
        "GPU memory",
        UNCLEAR_AFTER,
        "reduce the load of each GPU first: TP/PP/CP, micro-batches, rollout batch size, response length",
        ("cuda_oom",),
        r"out of memory|OutOfMemoryError",
    ),
    FailureStage(
        "communication between GPUs",
        UNCLEAR_AFTER,
        "rerun; where it hangs again, see which rank did not take part (the run's `hang` folder, NCCL_DEBUG=INFO)",
        ("nccl_error", "timeout_hang"),
        r"Watchdog caught collective|NCCL error|ncclSystemError|ncclRemoteError|ncclUnhandled",
    ),
    FailureStage(
        "checkpoint save/load",
        NEVER,
        "rerun without save/resume (SAVE_FREQ=-1) to separate model construction from checkpoint behavior; then see "
        "whether verl expected keys that the Bridge export intentionally did not regenerate",
        ("checkpoint_missing_keys",),
        r"checkpoint_manager|(?:save|load)_checkpoint|dist_checkpointing",
    ),
    FailureStage(
        "the rollout engine",
        UNCLEAR_AFTER,
        "report the boundary: a rollout that fails before actor construction may be verl's rollout engine's issue "
        "rather than a Bridge provider's; enforce_eager=True leaves CUDA graph capture out",
        ("vllm_engine_crash", "sglang_engine_crash", "cuda_graph_capture"),
        r"\bvllm|vllm_|Engine(?:Core|Dead)|Engine core|rollout\w*\.py|llm_server|GPU memory utilization",
    ),
    FailureStage(
        "the death of a process",
        UNCLEAR_AFTER,
        "find out why it died (memory of the container, the worker's own log under artifacts), then rerun",
        pattern=r"worker died|actor (?:is dead|died)|Actor(?:Died|Unavailable)Error|WorkerCrashedError|"
        r"exit type: SYSTEM_ERROR|exitcode: -\d",
    ),
    FailureStage(
        "Ray",
        UNCLEAR_AFTER,
        "environment fix: `ray stop --force` inside the container, then rerun",
        ("ray_cluster",),
        r"ray\.init|GCS|raylet|placement group",
    ),
    FailureStage(
        "LoRA",
        NEVER,
        "check the target module names, and that the provider path uses the non-vanilla Bridge PEFT helpers that verl "
        "expects",
        pattern=r"\blora|lora_|peft|adapter",
    ),
    FailureStage(
        CONSTRUCTION,
        NEVER,
        "check that the Bridge provider is finalized with the same parallel sizes that verl initialized through "
        "Megatron mpu",
        pattern=r"provider|auto_bridge|model_bridge|param_mapping|megatron\.bridge|transformer_impl|megatron_utils|"
        r"parallel[_ ](?:state|size)|finaliz|\bmpu\b|DistributedDataParallel|FullySharded",
    ),
)
_TRAINING = FailureStage(
    "the training step", BEFORE, "provider fix, or a narrower rerun: the line above is where to begin"
)
_START = FailureStage("the start of the job", BEFORE, "environment fix: the line above is where to begin, then rerun")
_BY_NAME = {stage.name: stage for stage in STAGES}
# The preflight's checks that are no deliverable of their own.
PREFLIGHT_STAGES = {
    RAY: _BY_NAME["Ray"],
    MODELOPT: _BY_NAME["nvidia-modelopt"],
    DEVICES: _BY_NAME["ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES"],
    DATA: _BY_NAME["the data"],
    REWARD_MODEL: _BY_NAME["the reward model"],
    MODEL: _BY_NAME["the download of a model or data"],
    ROOM: _BY_NAME["a full disk"],
    DRIVER: WRONG_PATH,
    WORKER: WRONG_PATH,
}
CHANGE, ENVIRONMENT, UNCLEAR = "the change", "the environment", "unclear"
_SPECIAL = ("a full disk", "ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES", "nvidia-modelopt")


@dataclass(frozen=True)
class FailureLocation:
    """`owner` is the change, the environment, or unclear: whose failure it is, as far as anybody can tell.
    `constructed` says that Bridge-managed construction had begun."""

    stage: FailureStage
    owner: str
    constructed: bool

    def __str__(self) -> str:
        if self.stage.name == CONSTRUCTION:
            return f"in {CONSTRUCTION}"
        return f"{self.stage.name}, {'after' if self.constructed else 'before'} {CONSTRUCTION} began"


def locate_failure(error: Triage | None, constructed: bool, paths: Iterable[str] = ()) -> FailureLocation:
    """Of a training that failed. `paths` are those of its reward model."""
    if error is None or (not error.line and error.cause in ("", UNKNOWN)):  # an exit code alone says not whose it is
        owner = UNCLEAR if constructed else ENVIRONMENT
        return FailureLocation(_TRAINING if constructed else _START, owner, constructed)
    text = _words(error)
    stage = _stage(error.cause, text) or (_TRAINING if constructed else _START)
    if any(path and path in text for path in paths):
        stage = _BY_NAME["the reward model"]
    return FailureLocation(stage, _owner(stage, text, constructed, blocked=error.verdict == BLOCKED), constructed)


def locate_logged(failure: LoggedFailure, constructed: bool) -> FailureLocation:
    """Of an error that the log has, whatever became of the training."""
    text = "\n".join((failure.text, *failure.frames))
    stage = _stage("", text) or (_TRAINING if constructed else _START)
    return FailureLocation(stage, _owner(stage, text, constructed), constructed)


def stage_of_check(key: str, text: str) -> FailureStage:
    special = next((stage for stage in STAGES if stage.name in _SPECIAL and stage.matches(text)), None)
    if key in (DRIVER, WORKER):
        return OWN_IMPORT if is_own_import(text) else special or WRONG_PATH
    return special or PREFLIGHT_STAGES[key]


def stage_of_reason(reason: str) -> FailureStage:
    """The stage of a run that ended before it could say why itself."""
    unknown = _BY_NAME["the cluster"]
    return next((stage for stage in STAGES if stage.matches(reason)), unknown)


def is_own_import(text: str) -> bool:
    """Whether an import fails for what the Bridge checkout itself has in it."""
    return OWN_IMPORT.matches(text)


def _stage(cause: str, text: str) -> FailureStage | None:
    matches = next((stage for stage in STAGES if stage.matches(text)), None)
    return matches or next((stage for stage in STAGES if cause in stage.causes), None)


def _owner(stage: FailureStage, text: str, constructed: bool, *, blocked: bool = False) -> str:
    if stage.environment == NEVER:
        return CHANGE
    if not constructed:
        return ENVIRONMENT
    if stage.environment == ALWAYS and (blocked or stage.matches(text)):
        return ENVIRONMENT
    return CHANGE if stage.environment == BEFORE else UNCLEAR


def _words(error: Triage) -> str:
    return "\n".join((error.text or error.line, *error.frames))
