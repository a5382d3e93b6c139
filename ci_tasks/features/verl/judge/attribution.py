"""Whose failure it is, and what to do next: the guide's section "Failure triage" as a table.

Triage's cause comes first, then the innermost frame in code that is known here, then words. The guide's line is
Bridge-managed construction: what fails before it is the environment's, except for what Bridge's own code raises. What
fails in it or after it is the change's, except for what is the environment's whenever it happens, such as a full disk,
and for what says neither: a rollout engine, GPU memory, a hang or a killed process after construction may be the
change's doing or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER, TrainingFailure, constructs
from ci_tasks.logs.causes import DEPENDENCY, MACHINE, NETWORK, group_of

CONSTRUCTION = "Bridge-managed construction"
CHANGE, ENVIRONMENT, UNCLEAR = "the change", "the environment", "unclear"


class Stage(NamedTuple):
    """`owner` is whose failure it is once construction has started; before, it is the environment's, unless it is the
    change's own."""

    name: str
    owner: str
    follow_up: str


_PATH_FIX = "environment fix: PYTHONPATH, for Ray runtime_env.env_vars.PYTHONPATH, or an image with megatron.core"
WRONG_PATH = Stage("the import of the local Bridge checkout", ENVIRONMENT, _PATH_FIX)
OWN_IMPORT = Stage("the Bridge checkout's own imports", CHANGE, "provider fix: one of its imports is missing or broken")
_DOWNLOAD_FIX = "environment fix: download the model first; HF_HOME, HF_HUB_CACHE, and MODEL_PATH on a disk with room"
_DOWNLOAD = Stage("a download or a full disk", ENVIRONMENT, _DOWNLOAD_FIX)
_PACKAGES = Stage("package setup", ENVIRONMENT, "environment fix: install the missing package in the container setup")
_MACHINE = Stage("the machine", ENVIRONMENT, "environment fix: GPUs, driver, memory, ports, limits, permissions")
_NO_REWARD = "environment fix: RM_MODEL_PATH of a local reward model, or --no-reward-model, which is a limitation"
_REWARD_MODEL = Stage("the reward model", ENVIRONMENT, _NO_REWARD)
_WAITED = Stage("communication", UNCLEAR, "rerun with NCCL_DEBUG=INFO, and find the rank that did not take part")
_MEMORY = Stage("GPU memory", UNCLEAR, "reduce the load of each GPU: TP/PP/CP, micro-batches, rollout batch size")
_DATA = Stage("the data", UNCLEAR, "prepare it with examples/data_preprocess/gsm8k.py, or --train-files, --val-files")
_BOUNDARY = "report the boundary: before actor construction it may be the rollout engine, not a Bridge provider"
_ROLLOUT = Stage("the rollout engine", UNCLEAR, _BOUNDARY)
_SETTINGS = Stage("verl's configuration", UNCLEAR, "correct the setting, which this verl does not have or accept")
_DEATH = Stage("Ray or the death of a process", UNCLEAR, "find out why it died; ray stop --force; rerun")
_LORA = Stage("LoRA", CHANGE, "check LoRA's target module names, and Bridge's non-vanilla PEFT helpers")
_CHECKPOINT = Stage("checkpoint save/load", CHANGE, "rerun without save/resume (SAVE_FREQ=-1) to separate both")
_BUILD = Stage(CONSTRUCTION, CHANGE, "check that the provider is finalized with the parallel sizes of Megatron mpu")
_STEP = Stage("the training step", CHANGE, "provider fix, or a narrower rerun: begin with the error in the result")
_START = Stage("the start of the job", UNCLEAR, "environment fix: begin with the error in the result, then rerun")

# What decides before any frame: words that no rule of triage's knows, then triage's cause, or its group.
_SAID = (
    (r"No module named '?megatron(?:\.bridge|\.core)?'?(?:$|[^.\w])", WRONG_PATH),
    (r"SafetensorError|NameResolutionError|Failed to resolve '|HfHubHTTP|LocalEntryNotFound|No route to", _DOWNLOAD),
    (
        r"Too many open files|can't start new thread|Resource temporarily un|no kernel image|running low on mem",
        _MACHINE,
    ),
    (r"No module named|cannot open shared object|undefined symbol", _PACKAGES),
)
_CAUSES = {
    **dict.fromkeys(("disk_full", NETWORK), _DOWNLOAD),
    **dict.fromkeys(("lock_timeout", "host_memory", MACHINE), _MACHINE),
    **dict.fromkeys(("nccl_error", "hang"), _WAITED),
    DEPENDENCY: _PACKAGES,
    "gpu_memory": _MEMORY,
}
# Of the innermost frame that is known, and if none is, of the text and triage's cause.
_FRAMES = (
    (r"/verl/.*reward", _REWARD_MODEL),
    (r"/verl/utils/dataset/|/site-packages/(?:datasets|pyarrow)/", _DATA),
    (r"/(?:vllm|sglang)/|/verl/workers/rollout/|llm_server", _ROLLOUT),
    (r"/(?:hydra|omegaconf)/", _SETTINGS),
)
_WORDS = (
    (r"reward[_ -]?(?:model|loop|manager)|RM_MODEL_PATH|Skywork-Reward|reward_fn", _REWARD_MODEL),
    (r"\.parquet|TRAIN_FILES|VAL_FILES", _DATA),
    (r"\bvllm|sglang_engine|cuda_graph_capture|Engine(?:Core|Dead)|Engine core|GPU memory utilization", _ROLLOUT),
    (r"Could not override|Could not append|is not in struct|config_hydra", _SETTINGS),
    (r"worker died|actor (?:is dead|died)|Actor(?:Died|Unavailable)Error|WorkerCrashedError|SYSTEM_ERROR", _DEATH),
    (r"segfault_illegal_access|ray_cluster|ray\.init|GCS|raylet|placement group", _DEATH),
)
_OF_BRIDGE = (("(?i)peft|lora", _LORA), ("checkpoint", _CHECKPOINT), ("", _BUILD))  # of all frames of one in Bridge
# What only Bridge's own code can lack: its modules, and names of itself and of the Megatron-core that it pins.
_OWN_NAME = re.compile(
    r"No module named '?megatron\.(?:bridge|core)\.|"
    r"cannot import name .* from '?(?:partially initialized module '?)?megatron\.(?:bridge|core)|"
    r"module '?megatron\.(?:bridge|core)[\w.]*'? has no attribute|/megatron/bridge/\S* .*SyntaxError"
)
_OWN_ERROR = re.compile(r"^(?:\w+ )*(?:NameError|AttributeError|TypeError|\w*SyntaxError|IndentationError)\b")
_ANOTHER = re.compile(r"module '(?!megatron)[\w.]+' has no attribute")
_PLACE = re.compile(r"\((/[^()\s]+)\)$")


class Attribution(NamedTuple):
    """`owner` is the change, the environment, or unclear: whose failure it is, as far as the evidence says."""

    stage: Stage
    owner: str
    began: bool

    def __str__(self) -> str:
        if self.stage.name == CONSTRUCTION:
            return f"in {CONSTRUCTION}"
        return f"{self.stage.name}, {'after' if self.began else 'before'} {CONSTRUCTION} began"


def attribute(failure: TrainingFailure | None, began: bool, root: str = "", reward: Iterable[str] = ()) -> Attribution:
    """Whose failure ended a training. `began`: construction had started before it. `root` is the Bridge checkout as
    the job sees it, `reward` are paths of the reward model. An exit code alone says nothing."""
    if failure is None:
        return Attribution(_STEP, UNCLEAR, began) if began else Attribution(_START, ENVIRONMENT, began)
    stage = _stage(failure, began, root, reward)
    return Attribution(stage, stage.owner if began or stage.owner == CHANGE else ENVIRONMENT, began)


def stage_of(text: str) -> Stage:
    """The stage of a failure, by its text alone."""
    return _stage(TrainingFailure.said(text), False)


def stage_of_check(key: str, text: str) -> Stage:
    """The stage of a mark of the preflight that did not pass. Its own text has the remedy, unless a cause is known.
    Words of a command, such as `--extra vllm`, decide nothing."""
    if key not in (DRIVER, WORKER):
        stage = stage_of(text)
        return _START if stage in dict(_WORDS).values() else stage
    stage = _stage(TrainingFailure.said(text, ("/megatron/bridge/__init__.py:<module>",)), False)
    place = _PLACE.search(text)
    raised = place is not None and "/megatron/bridge/" in place[1] and not text.startswith(("ImportError", "OSError"))
    if stage.owner != ENVIRONMENT and raised:  # those are also raised for what Bridge misses
        return OWN_IMPORT
    return stage if stage is OWN_IMPORT or stage.owner == ENVIRONMENT else WRONG_PATH


def _stage(failure: TrainingFailure, began: bool, root: str = "", reward: Iterable[str] = ()) -> Stage:
    text, frames = failure.text, failure.frames
    in_bridge = any(constructs(frame) for frame in frames)
    own_error = in_bridge and not failure.constructs and _OWN_ERROR.search(text) and not _ANOTHER.search(text)
    if own_error or _is_own_name(text, root):
        return OWN_IMPORT
    if any(path and path in text for path in reward):
        return _REWARD_MODEL
    if decided := _first(_SAID, text) or _CAUSES.get(failure.cause) or _CAUSES.get(group_of(failure.cause)):
        return decided
    for frame in reversed(frames):
        if known := _first(_OF_BRIDGE, "\n".join(frames)) if constructs(frame) else _first(_FRAMES, frame):
            return known
    return _first(_WORDS, f"{text}\n{failure.cause}", re.IGNORECASE) or (_STEP if began else _START)


def _first(rules: Iterable[tuple[str, Stage]], text: str, flags: int = 0) -> Stage | None:
    return next((stage for pattern, stage in rules if re.search(pattern, text, flags)), None)


def _is_own_name(text: str, root: str) -> bool:
    """Whether an import fails for what the Bridge checkout itself has in it, or lacks. A Megatron-core that lies
    elsewhere is not the one that it pins."""
    place = _PLACE.search(text)
    return bool(_OWN_NAME.search(text)) and (not (place and root) or place[1].startswith(root))
