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
from typing import NamedTuple

from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER, TrainingFailure, constructs
from ci_tasks.logs.causes import DEPENDENCY, MACHINE, NETWORK, group_of

CONSTRUCTION = "Bridge-managed construction"
CHANGE, ENVIRONMENT, UNCLEAR = "the change", "the environment", "unclear"


class Stage(NamedTuple):
    """`owner` is whose failure it is once construction has begun; before, it is the environment's, unless it is the
    change's own. `frames` are looked for in frames, `words`, if no frame is known, in the text and triage's cause."""

    name: str
    owner: str
    follow_up: str
    frames: str = "$^"
    words: str = "$^"


WRONG_PATH = Stage(
    "the import of the local Bridge checkout",
    ENVIRONMENT,
    "environment fix: correct PYTHONPATH, for Ray workers by runtime_env.env_vars.PYTHONPATH, then rerun",
)
OWN_IMPORT = Stage(
    "the Bridge checkout's own imports", CHANGE, "provider fix: what Bridge imports is not there or broken"
)
# What decides before any frame: by triage's cause, else by the group of its cause.
_DOWNLOAD = Stage("a download", ENVIRONMENT, "environment fix: download the model before the run, and pass MODEL_PATH")
_PACKAGES = Stage("package setup", ENVIRONMENT, "environment fix: install what is missing, as container setup")
_MACHINE = Stage(
    "the machine",
    ENVIRONMENT,
    "environment fix: GPUs, driver, memory, ports, limits, permissions, visible devices",
)
_DECIDES = {
    "disk_full": Stage(
        "a full disk", ENVIRONMENT, "environment fix: move HF_HOME, HF_HUB_CACHE, and MODEL_PATH, then rerun"
    ),
    "lock_timeout": _MACHINE,
    "nccl_error": Stage("communication", UNCLEAR, "rerun, and see which rank did not take part: NCCL_DEBUG=INFO"),
    NETWORK: _DOWNLOAD,
    DEPENDENCY: _PACKAGES,
    MACHINE: _MACHINE,
    "host_memory": _MACHINE,
    "gpu_memory": Stage(
        "GPU memory", UNCLEAR, "reduce the load of each GPU: TP/PP/CP, micro-batches, rollout batch size"
    ),
    "hang": Stage("a hang", UNCLEAR, "rerun, and see which rank did not take part: the run's hang folder"),
}
# What no rule of triage's knows.
_WORDS = (
    (r"No module named '?megatron(?:\.bridge|\.core)?'?(?:$|[^.\w])", WRONG_PATH),
    (r"SafetensorError|NameResolutionError|Failed to resolve '|HfHubHTTP|LocalEntryNotFound|No route to", _DOWNLOAD),
    (r"Too many open files|can't start new thread|Resource temporarily unavailable|no kernel image", _MACHINE),
    (r"node running low on memory", _MACHINE),
    (r"No module named|cannot open shared object|undefined symbol", _PACKAGES),
)
_REWARD_MODEL = Stage(
    "the reward model",
    ENVIRONMENT,
    "environment fix: set RM_MODEL_PATH to a local reward model, or disable it and report that as a limitation",
    r"/verl/.*reward",
    r"reward[_ -]?(?:model|loop|manager)|RM_MODEL_PATH|Skywork-Reward|reward_fn",
)
_AROUND_BRIDGE = (
    _REWARD_MODEL,
    Stage(
        "the data",
        UNCLEAR,
        "prepare the data with examples/data_preprocess/gsm8k.py, or set TRAIN_FILES and VAL_FILES",
        r"/verl/utils/dataset/|/site-packages/(?:datasets|pyarrow)/",
        r"\.parquet|TRAIN_FILES|VAL_FILES",
    ),
    Stage(
        "the rollout engine",
        UNCLEAR,
        "report the boundary: before actor construction it may be verl's rollout engine rather than a Bridge provider",
        r"/(?:vllm|sglang)/|/verl/workers/rollout/|llm_server",
        r"\bvllm|sglang_engine|cuda_graph_capture|Engine(?:Core|Dead)|Engine core|GPU memory utilization",
    ),
    Stage(
        "verl's configuration",
        UNCLEAR,
        "correct the setting that this verl does not have, or does not accept",
        r"/(?:hydra|omegaconf)/",
        r"Could not override|Could not append|is not in struct|config_hydra",
    ),
    Stage(
        "Ray or the death of a process",
        UNCLEAR,
        "find out why it died, stop Ray inside the container (ray stop --force), then rerun",
        words=r"worker died|actor (?:is dead|died)|Actor(?:Died|Unavailable)Error|WorkerCrashedError|SYSTEM_ERROR"
        r"|segfault_illegal_access|ray_cluster|ray\.init|GCS|raylet|placement group",
    ),
)
_OF_BRIDGE = (
    Stage("LoRA", CHANGE, "check LoRA's target module names, and Bridge's non-vanilla PEFT helpers", "(?i)peft|lora"),
    Stage("checkpoint save/load", CHANGE, "rerun without save/resume (SAVE_FREQ=-1) to separate both", "checkpoint"),
    Stage(CONSTRUCTION, CHANGE, "check that the provider is finalized with the parallel sizes of Megatron mpu", ""),
)
_STEP = Stage("the training step", CHANGE, "provider fix, or a narrower rerun: the line above is where to begin")
_START = Stage("the start of the job", UNCLEAR, "environment fix: the line above is where to begin, then rerun")
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
    constructed: bool

    def __str__(self) -> str:
        if self.stage.name == CONSTRUCTION:
            return f"in {CONSTRUCTION}"
        return f"{self.stage.name}, {'after' if self.constructed else 'before'} {CONSTRUCTION} began"


def attribute(
    failure: TrainingFailure | None, constructed: bool, root: str = "", reward: Iterable[str] = ()
) -> Attribution:
    """Whose failure ended a training. `constructed`: construction had begun before it. `root` is the Bridge checkout as
    the job sees it, `reward` are paths of the reward model. An exit code alone says nothing."""
    if failure is None:
        return Attribution(_STEP if constructed else _START, UNCLEAR if constructed else ENVIRONMENT, constructed)
    stage = _stage(failure, constructed, root, reward)
    owner = stage.owner if constructed or stage.owner == CHANGE else ENVIRONMENT
    return Attribution(stage, owner, constructed)


def stage_of(text: str) -> Stage:
    """That of a text which is all that is known of a failure."""
    return _stage(TrainingFailure.said(text), False)


def stage_of_check(key: str, text: str) -> Stage:
    """That of a mark of the preflight which did not pass. Its own text has the remedy, unless a cause is known. Words
    of a command, such as `--extra vllm`, decide nothing."""
    if key not in (DRIVER, WORKER):
        stage = stage_of(text)
        return stage if stage.words == "$^" else _START
    stage = _stage(TrainingFailure.said(text, ("/megatron/bridge/__init__.py:<module>",)), False)
    return stage if stage is OWN_IMPORT or stage.owner == ENVIRONMENT else WRONG_PATH


def _stage(failure: TrainingFailure, constructed: bool, root: str = "", reward: Iterable[str] = ()) -> Stage:
    text, frames, cause = failure.text, failure.frames, failure.cause
    in_bridge = any(constructs(frame) for frame in frames)
    own_error = in_bridge and not failure.constructs and _OWN_ERROR.search(text) and not _ANOTHER.search(text)
    if own_error or _is_own_name(text, root):
        return OWN_IMPORT
    if any(path and path in text for path in reward):
        return _REWARD_MODEL
    for words, stage in _WORDS:
        if re.search(words, text):
            return stage
    if known := _DECIDES.get(cause) or _DECIDES.get(group_of(cause)):
        return known
    for frame in reversed(frames):  # the innermost that lies in code that is known here
        if constructs(frame):
            return next(stage for stage in _OF_BRIDGE if re.search(stage.frames, "\n".join(frames)))
        if around := next((stage for stage in _AROUND_BRIDGE if re.search(stage.frames, frame)), None):
            return around
    told = f"{text}\n{cause}"
    said = (stage for stage in _AROUND_BRIDGE if re.search(stage.words, told, re.IGNORECASE))
    return next(said, _STEP if constructed else _START)


def _is_own_name(text: str, root: str) -> bool:
    """Whether an import fails for what the Bridge checkout itself has in it, or lacks. A Megatron-core that lies
    elsewhere is not the one that it pins."""
    place = _PLACE.search(text)
    pinned = not (place and root) or place[1].startswith(root)
    return bool(_OWN_NAME.search(text)) and pinned
