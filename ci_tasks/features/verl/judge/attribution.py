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

from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER, Failure, constructs

CONSTRUCTION = "Bridge-managed construction"
CHANGE, ENVIRONMENT, UNCLEAR = "the change", "the environment", "unclear"


class Stage(NamedTuple):
    """A row of the table. `owner` is whose failure it is once construction has begun; before, it is the environment's,
    unless it is the change's own. `decides` is looked for in the text and in triage's cause before any frame counts,
    `frames` in the frames, and `suggests`, in text and cause again, if no frame is known."""

    name: str
    owner: str
    todo: str
    decides: str = ""
    frames: str = ""
    suggests: str = ""

    @property
    def follow_up(self) -> str:
        return f"environment fix: {self.todo}" if self.owner == ENVIRONMENT else self.todo


WRONG_PATH = Stage(
    "the import of the local Bridge checkout",
    ENVIRONMENT,
    "correct PYTHONPATH before trusting any result, for Ray workers by runtime_env.env_vars.PYTHONPATH",
    r"No module named '?megatron(?:\.bridge|\.core)?'?(?:$|[^.\w])",
)
OWN_IMPORT = Stage(
    "the Bridge checkout's own imports", CHANGE, "provider fix: what Bridge imports is not there or broken"
)
REWARD_MODEL = Stage(
    "the reward model",
    ENVIRONMENT,
    "set RM_MODEL_PATH to a local reward model, or disable it and report that as a limitation",
    frames=r"/verl/.*reward",
    suggests=r"reward[_ -]?(?:model|loop|manager)|RM_MODEL_PATH|Skywork-Reward|reward_fn",
)
STAGES = (
    WRONG_PATH,
    Stage("a full disk", ENVIRONMENT, "move HF_HOME, HF_HUB_CACHE, and MODEL_PATH to a larger path", "disk_full"),
    Stage(
        "the download of a model or data",
        ENVIRONMENT,
        "download the model once before the run, and pass MODEL_PATH",
        r"hf_download|network_ssh|SafetensorError|NameResolutionError|Failed to resolve '|HfHubHTTP|LocalEntryNotFound"
        r"|No route to",
    ),
    Stage(
        "the machine",
        ENVIRONMENT,
        "GPUs, driver, memory, ports, limits, permissions, or ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES",
        r"gpu_hardware|gpu_busy|lock_timeout|port_in_use|shm_too_small|permission_docker|rocr_conflict|host_oom_killed"
        r"|node running low on memory|Too many open files|can't start new thread|Resource temporarily unavailable"
        r"|no kernel image",
    ),
    Stage(
        "package setup",
        ENVIRONMENT,
        "install what is missing, e.g. pip install --extra-index-url https://pypi.nvidia.com nvidia-modelopt",
        "import_error|dependency_version_mismatch|No module named|cannot open shared object|undefined symbol",
    ),
    Stage(
        "GPU memory", UNCLEAR, "reduce the load of each GPU: TP/PP/CP, micro-batches, rollout batch size", "cuda_oom"
    ),
    Stage(
        "communication",
        UNCLEAR,
        "rerun, and see which rank did not take part: NCCL_DEBUG=INFO",
        "nccl_error|timeout_hang",
    ),
    REWARD_MODEL,
    Stage(
        "the data",
        UNCLEAR,
        "prepare the data with examples/data_preprocess/gsm8k.py, or set TRAIN_FILES and VAL_FILES",
        frames=r"/verl/utils/dataset/|/site-packages/(?:datasets|pyarrow)/",
        suggests=r"\.parquet|TRAIN_FILES|VAL_FILES",
    ),
    Stage(
        "the rollout engine",
        UNCLEAR,
        "report the boundary: before actor construction it may be verl's rollout engine rather than a Bridge provider",
        frames=r"/(?:vllm|sglang)/|/verl/workers/rollout/|llm_server",
        suggests=r"\bvllm|sglang_engine|cuda_graph_capture|Engine(?:Core|Dead)|Engine core|GPU memory utilization",
    ),
    Stage(
        "verl's configuration",
        UNCLEAR,
        "correct the setting that this verl does not have, or does not accept",
        frames=r"/(?:hydra|omegaconf)/",
        suggests=r"Could not override|Could not append|is not in struct|config_hydra",
    ),
    Stage(
        "Ray or the death of a process",
        UNCLEAR,
        "find out why it died, stop Ray inside the container (ray stop --force), then rerun",
        suggests=r"worker died|actor (?:is dead|died)|Actor(?:Died|Unavailable)Error|WorkerCrashedError|SYSTEM_ERROR"
        r"|segfault_illegal_access|ray_cluster|ray\.init|GCS|raylet|placement group",
    ),
)
_OF_BRIDGE = (
    Stage(
        "LoRA",
        CHANGE,
        "check LoRA's target module names, and Bridge's non-vanilla PEFT helpers",
        frames="(?i)peft|lora",
    ),
    Stage(
        "checkpoint save/load", CHANGE, "rerun without save/resume (SAVE_FREQ=-1) to separate both", frames="checkpoint"
    ),
    Stage(CONSTRUCTION, CHANGE, "check that the provider is finalized with the parallel sizes of Megatron mpu"),
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


def attribute(failure: Failure | None, constructed: bool, root: str = "", reward: Iterable[str] = ()) -> Attribution:
    """Whose failure ended a training. `constructed`: construction had begun before it. `root` is the Bridge checkout as
    the job sees it, `reward` are paths of the reward model. An exit code alone says nothing."""
    if failure is None:
        return Attribution(_STEP if constructed else _START, UNCLEAR if constructed else ENVIRONMENT, constructed)
    stage = _stage(failure, constructed, root, reward)
    owner = stage.owner if constructed or stage.owner == CHANGE else ENVIRONMENT
    return Attribution(stage, owner, constructed)


def stage_of_check(key: str, text: str) -> Stage:
    """That of a mark of the preflight which did not pass. Its own text has the remedy, unless a cause is known."""
    if key not in (DRIVER, WORKER):
        return stage_of(text)
    stage = _stage(Failure.said(text, ("/megatron/bridge/__init__.py:<module>",)), False)
    return stage if stage is OWN_IMPORT or _decides(stage, text) else WRONG_PATH


def stage_of(text: str) -> Stage:
    """That of a text which is all that is known of a failure."""
    return _stage(Failure.said(text), False)


def _decides(stage: Stage, text: str) -> bool:
    return bool(stage.decides and re.search(stage.decides, text))


def _stage(failure: Failure, constructed: bool, root: str = "", reward: Iterable[str] = ()) -> Stage:
    text, frames = failure.text, failure.frames
    in_bridge = any(constructs(frame) for frame in frames)
    own_error = in_bridge and not failure.constructs and _OWN_ERROR.search(text) and not _ANOTHER.search(text)
    if own_error or _is_own_name(text, root):
        return OWN_IMPORT
    if any(path and path in text for path in reward):
        return REWARD_MODEL
    told = f"{text}\n{failure.cause}"
    if decided := next((stage for stage in STAGES if _decides(stage, told)), None):
        return decided
    for frame in reversed(frames):  # the innermost that lies in code that is known here
        if constructs(frame):
            return next(stage for stage in _OF_BRIDGE if re.search(stage.frames, "\n".join(frames)))
        if known := next((stage for stage in STAGES if stage.frames and re.search(stage.frames, frame)), None):
            return known
    said = (stage for stage in STAGES if stage.suggests and re.search(stage.suggests, told, re.IGNORECASE))
    return next(said, _STEP if constructed else _START)


def _is_own_name(text: str, root: str) -> bool:
    """Whether an import fails for what the Bridge checkout itself has in it, or lacks. A Megatron-core that lies
    elsewhere is not the one that it pins."""
    place = _PLACE.search(text)
    pinned = not (place and root) or place[1].startswith(root)
    return bool(_OWN_NAME.search(text)) and pinned
