"""Whose failure it is, and what to do next: the guide's section "Failure triage" as a table.

Triage's cause comes first, then the innermost frame that lies in code that is known here, then words. The guide's
line is Bridge-managed construction: what fails before it is the environment's, except for what Bridge's own code
raises. What fails in it or after it is the change's, except for what is the environment's whenever it happens, such as
a full disk, and for what says neither: a rollout engine, GPU memory, a hang or a killed process after construction may
be the change's doing or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER, Failure, constructs

CONSTRUCTION = "Bridge-managed construction"
CHANGE, ENVIRONMENT, UNCLEAR = "the change", "the environment", "unclear"


@dataclass(frozen=True)
class Stage:
    """A row of the table. `owner` is whose failure it is once construction has begun; before, it is the environment's,
    unless it is the change's own. `causes` are triage's that decide it, `likely` those that do so where no frame lies
    in Bridge; `frames` and `words` are regular expressions."""

    name: str
    owner: str
    follow_up: str
    causes: str = ""
    likely: str = ""
    frames: str = ""
    words: str = ""
    at_once: str = ""
    """Words that decide before any cause: no rule of triage's knows them."""


WRONG_PATH = Stage(
    "the import of the local Bridge checkout",
    ENVIRONMENT,
    "environment fix: correct PYTHONPATH before trusting any result; for Ray workers pass "
    '"++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH=${PYTHONPATH}" to the wrapper',
    at_once=r"No module named '?megatron(?:\.bridge|\.core)?'?(?:$|[^.\w])",
)
DENSE_MODEL = Stage(
    "the request: expert parallelism of a dense model",
    ENVIRONMENT,
    "usage: the expert variant needs a routed checkpoint; name one with --model-id or --model-path",
    at_once=r"num_moe_experts must|must be (?:set|non.?None) .*expert.?parallel",
)
OWN_IMPORT = Stage(
    "the Bridge checkout's own imports",
    CHANGE,
    "provider fix: the Bridge checkout does not have, or cannot load, what it imports",
)
STAGES = (
    WRONG_PATH,
    DENSE_MODEL,
    Stage(
        "ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES",
        ENVIRONMENT,
        "environment fix: drop ROCR_VISIBLE_DEVICES in the launcher or container where CUDA_VISIBLE_DEVICES is set",
        causes="rocr_conflict",
    ),
    Stage(
        "a full disk",
        ENVIRONMENT,
        "environment fix: move HF_HOME, HF_HUB_CACHE, and MODEL_PATH to a larger shared or node-local path, then rerun "
        "with the explicit local MODEL_PATH",
        causes="disk_full",
    ),
    Stage(
        "the download of a model or data",
        ENVIRONMENT,
        "environment fix: download the model once before the run, and pass MODEL_PATH",
        causes="hf_download network_ssh",
        at_once=r"SafetensorError|NameResolutionError|Failed to resolve '|HfHubHTTP|LocalEntryNotFound|No route to",
    ),
    Stage(
        "the machine",
        ENVIRONMENT,
        "environment fix: GPUs, driver, locks, ports, limits or permissions of the host, then rerun",
        causes="gpu_hardware gpu_busy lock_timeout port_in_use shm_too_small permission_docker",
        at_once=r"Too many open files|can't start new thread|Resource temporarily unavailable|no kernel image",
    ),
    Stage(
        "the host's or the container's memory",
        ENVIRONMENT,
        "environment fix: more memory for the container, or fewer or smaller workers, then rerun",
        causes="host_oom_killed",
        at_once=r"node running low on memory",
    ),
    Stage(
        "nvidia-modelopt",
        ENVIRONMENT,
        "environment fix: python -m pip install --extra-index-url https://pypi.nvidia.com nvidia-modelopt",
        at_once=r"No module named '?modelopt",
    ),
    Stage(
        "package setup",
        ENVIRONMENT,
        "environment fix: install what is missing in the image, as container setup, not as a change of a repository",
        causes="import_error dependency_version_mismatch",
        at_once=r"No module named|cannot open shared object|undefined symbol",
    ),
    Stage(
        "GPU memory",
        UNCLEAR,
        "reduce the load of each GPU first: TP/PP/CP, micro-batches, rollout batch size, response length",
        causes="cuda_oom",
    ),
    Stage(
        "communication between GPUs",
        UNCLEAR,
        "rerun; where it hangs again, see which rank did not take part (the run's `hang` folder, NCCL_DEBUG=INFO)",
        causes="nccl_error timeout_hang",
    ),
    Stage(
        "the reward model",
        ENVIRONMENT,
        "environment fix: set RM_MODEL_PATH to a local reward model, or pass reward.reward_model.enable=False and "
        "report that as a limitation",
        likely="reward_fn",
        frames=r"/verl/.*reward",
        words=r"reward[_ -]?(?:model|loop|manager)|RM_MODEL_PATH|Skywork-Reward",
    ),
    Stage(
        "the data",
        UNCLEAR,
        "environment fix: prepare the data with examples/data_preprocess/gsm8k.py, or set TRAIN_FILES and VAL_FILES",
        frames=r"/verl/utils/dataset/|/site-packages/(?:datasets|pyarrow)/",
        words=r"\.parquet|TRAIN_FILES|VAL_FILES",
    ),
    Stage(
        "the rollout engine",
        UNCLEAR,
        "report the boundary: a rollout that fails before actor construction may be verl's rollout engine's issue "
        "rather than a Bridge provider's; enforce_eager=True leaves CUDA graph capture out",
        likely="vllm_engine_crash sglang_engine_crash cuda_graph_capture",
        frames=r"/(?:vllm|sglang)/|/verl/workers/rollout/|llm_server",
        words=r"\bvllm|Engine(?:Core|Dead)|Engine core|GPU memory utilization",
    ),
    Stage(
        "verl's configuration",
        UNCLEAR,
        "correct the settings: this verl does not have, or does not accept, the one that is named above",
        likely="config_hydra",
        frames=r"/(?:hydra|omegaconf)/",
        words=r"Could not override|Could not append|is not in struct",
    ),
    Stage(
        "the death of a process",
        UNCLEAR,
        "find out why it died (memory of the container, the worker's own log under artifacts), then rerun",
        likely="segfault_illegal_access ray_cluster",
        words=r"worker died|actor (?:is dead|died)|Actor(?:Died|Unavailable)Error|WorkerCrashedError|SYSTEM_ERROR",
    ),
    Stage(
        "Ray",
        UNCLEAR,
        "environment fix: `ray stop --force` inside the container, then rerun",
        words=r"ray\.init|GCS|raylet|placement group",
    ),
)
_BY_NAME = {stage.name: stage for stage in STAGES}
_OF_BRIDGE = (
    Stage(
        "LoRA",
        CHANGE,
        "check the target module names, and that the provider path uses the non-vanilla Bridge PEFT helpers that verl "
        "expects",
        frames=r"(?i)peft|lora",
    ),
    Stage(
        "checkpoint save/load",
        CHANGE,
        "rerun without save/resume (SAVE_FREQ=-1) to separate model construction from checkpoint behavior; then see "
        "whether verl expected keys that the Bridge export intentionally did not regenerate",
        frames=r"checkpoint",
    ),
    Stage(
        CONSTRUCTION,
        CHANGE,
        "check that the Bridge provider is finalized with the same parallel sizes that verl initialized through "
        "Megatron mpu",
        frames="",
    ),
)
_STEP = Stage("the training step", CHANGE, "provider fix, or a narrower rerun: the line above is where to begin")
_START = Stage("the start of the job", UNCLEAR, "environment fix: the line above is where to begin, then rerun")
_OF_CHECKS = {
    "ray": _BY_NAME["Ray"],
    "modelopt": _BY_NAME["nvidia-modelopt"],
    "devices": _BY_NAME["ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES"],
    "data": _BY_NAME["the data"],
    "reward-model": _BY_NAME["the reward model"],
    "model": _BY_NAME["the download of a model or data"],
    "room": _BY_NAME["a full disk"],
    "uv": _BY_NAME["package setup"],
    "dummy-config": _BY_NAME["the data"],
    DRIVER: WRONG_PATH,
    WORKER: WRONG_PATH,
}
# What only Bridge's own code can lack: its modules, and names of itself and of the Megatron-core that it pins.
_OWN_NAME = re.compile(
    r"No module named '?megatron\.(?:bridge|core)\.|"
    r"cannot import name .* from '?(?:partially initialized module '?)?megatron\.(?:bridge|core)|"
    r"module '?megatron\.(?:bridge|core)[\w.]*'? has no attribute|/megatron/bridge/\S* .*SyntaxError"
)
_OWN_ERROR = re.compile(r"^(?:\w+ )*(?:NameError|AttributeError|TypeError|\w*SyntaxError|IndentationError)\b")
_ANOTHER = re.compile(r"module '(?!megatron)[\w.]+' has no attribute")
_PLACE = re.compile(r"\((/[^()\s]+)\)$")


@dataclass(frozen=True)
class Attribution:
    """`owner` is the change, the environment, or unclear: whose failure it is, as far as anybody can tell."""

    stage: Stage
    owner: str
    constructed: bool

    def __str__(self) -> str:
        if self.stage.name == CONSTRUCTION:
            return f"in {CONSTRUCTION}"
        return f"{self.stage.name}, {'after' if self.constructed else 'before'} {CONSTRUCTION} began"


def attribute(failure: Failure | None, constructed: bool, root: str = "", reward: Iterable[str] = ()) -> Attribution:
    """Whose failure ended a training. `constructed` says that construction had begun before it; `root` is the Bridge
    checkout as the job sees it, `reward` are paths of the reward model. An exit code alone says nothing."""
    if failure is None:
        return Attribution(_STEP if constructed else _START, UNCLEAR if constructed else ENVIRONMENT, constructed)
    stage = _stage(failure, constructed, root, reward)
    owner = stage.owner if constructed or stage.owner == CHANGE else ENVIRONMENT
    return Attribution(stage, owner, constructed)


def is_own_name(text: str, root: str = "") -> bool:
    """Whether an import fails for what the Bridge checkout itself has in it, or lacks. A Megatron-core that lies
    elsewhere is not the one that it pins."""
    place = _PLACE.search(text)
    pinned = not (place and root) or place[1].startswith(root)
    return bool(_OWN_NAME.search(text)) and pinned


def stage_of_check(key: str, text: str) -> Stage:
    """That of a mark of the preflight which did not pass."""
    imports = key in (DRIVER, WORKER)
    failure = Failure.said(text, ("/megatron/bridge/__init__.py:<module>",) if imports else ())
    stage = _stage(failure, False, "", ())
    decides = imports or stage.name != "package setup"
    return stage if stage is OWN_IMPORT or (decides and _decides(stage, failure)) else _OF_CHECKS.get(key, stage)


def stage_of_reason(reason: str) -> Stage:
    """That of a run which ended before it could say why itself."""
    stage = _stage(Failure.said(reason), False, "", ())
    return _BY_NAME["the machine"] if stage is _START else stage


def _decides(stage: Stage, failure: Failure) -> bool:
    said = bool(stage.at_once) and bool(re.search(stage.at_once, failure.text))
    return said or failure.cause in stage.causes.split()


def _stage(failure: Failure, constructed: bool, root: str, reward: Iterable[str]) -> Stage:
    text, frames = failure.text, failure.frames
    in_bridge = any(constructs(frame) for frame in frames)
    own_error = in_bridge and not failure.constructs and _OWN_ERROR.search(text) and not _ANOTHER.search(text)
    if is_own_name(text, root) or own_error:
        return OWN_IMPORT
    if any(path and path in text for path in reward):
        return _BY_NAME["the reward model"]
    for stage in STAGES:
        if _decides(stage, failure):
            return stage
    for frame in reversed(frames):  # the innermost that lies in code that is known here
        if constructs(frame):
            return next(stage for stage in _OF_BRIDGE if re.search(stage.frames, "\n".join(frames)))
        if of_frame := next((stage for stage in STAGES if stage.frames and re.search(stage.frames, frame)), None):
            return of_frame
    likely = (stage for stage in STAGES if failure.cause in stage.likely.split())
    said = (stage for stage in STAGES if stage.words and re.search(stage.words, text, re.IGNORECASE))
    return next(said, None) or next(likely, None) or (_STEP if constructed else _START)
