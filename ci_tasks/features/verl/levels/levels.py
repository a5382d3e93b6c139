"""The levels as a table: what each is for, and which trainings through verl's wrapper show it.

A level is one or more *trainings*: runs of verl's maintained wrapper with an environment and Hydra overrides. Every
level above 0 begins with level 0, since the guide says to start there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError

WRAPPER = "tests/special_e2e/run_ppo_trainer_megatron.sh"
DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B"  # a dense one
DENSE, EXPERT = "dense", "expert"
VARIANTS = (DENSE, EXPERT)
FEWEST_STEPS, MOST_STEPS = 20, 100  # of level 5: fewer show no trend, more are a benchmark


@dataclass(frozen=True)
class Level:
    """A row of the guide's table. `title` is what its run is called in the summary."""

    number: int
    name: str
    title: str
    required_when: str
    proves: str


LEVELS = (
    Level(
        0,
        "LoRA + DDP smoke",
        "LoRA + DDP",
        "any Bridge change that claims verl compatibility",
        "verl imports the local Bridge checkout, applies PEFT, wraps with Megatron DDP, builds optimizer state, runs "
        "rollout, ref and critic, and finishes one training step",
    ),
    Level(
        1,
        "Save/resume",
        "save/resume",
        "PEFT, checkpointing, HF export, adapter export, optimizer state, or resume behavior changed",
        "verl-owned checkpoint scheduling saves and reloads Bridge-built model state",
    ),
    Level(
        2,
        "Parallelism stress",
        "parallelism stress",
        "provider finalization, mpu-derived settings, TP/PP/CP/EP, sequence parallel, or dispatcher behavior changed",
        "provider settings remain correct under non-trivial Megatron parallel state",
    ),
    Level(
        3,
        "Optional Megatron-FSDP",
        "Megatron-FSDP",
        "only when downstream asks for verl Megatron-FSDP coverage or the change touches that integration path",
        "the same provider works when verl selects Megatron-FSDP instead of DDP",
    ),
    Level(
        4,
        "Feature-specific e2e",
        "feature-specific run",
        "the change depends on runtime behavior that the default text-only smoke does not exercise",
        "the requested feature is activated by a targeted verl command or script",
    ),
    Level(
        5,
        "Convergence / learning signal",
        "learning signal",
        "optimizer, scheduler, loss, reward, PEFT trainability, gradient flow, or training stability changed",
        "metrics move in the expected direction over a short run without zero, NaN or unstable updates",
    ),
)

_RESUME = "level 1: resume"
# The guide's minimal run: short, non-vanilla Bridge, LoRA, Megatron DDP, no parallelism, one step.
MINIMAL: Mapping[str, str] = {
    "ENGINE": "vllm",
    "USE_MBRIDGE": "True",
    "VANILLA_MBRIDGE": "False",
    "VALUE_VANILLA_MBRIDGE": "False",
    "LORA_RANK": "4",
    "USE_MEGATRON_FSDP": "False",
    "COMMON_PP": "1",
    "COMMON_VPP": "null",
    "COMMON_CP": "1",
    "COMMON_TP": "1",
    "INFER_TP": "1",
    "ALL_OFFLOAD": "False",
    "TOTAL_TRAIN_STEPS": "1",
    "SAVE_FREQ": "-1",
    "VAL_BEFORE_TRAIN": "False",
    "TEST_FREQ": "-1",
}
_PARALLEL: Mapping[str, Mapping[str, str]] = {
    DENSE: {"COMMON_TP": "2", "COMMON_PP": "2", "COMMON_VPP": "null", "COMMON_CP": "1", "INFER_TP": "2"},
    EXPERT: {"COMMON_EP": "2", "COMMON_ETP": "1", "ROUTING_REPLAY_MODE": "disabled"},
}
_FUSION = "override_transformer_config.gradient_accumulation_fusion=False"
_FSDP = tuple(f"++{part}.megatron.{_FUSION}" for part in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"))
# The wrapper's variables → the settings that verl prints when it starts. What was asked for is checked there.
SETTINGS: Mapping[str, str] = {
    "ENGINE": "actor_rollout_ref.rollout.name",
    "USE_MBRIDGE": "actor_rollout_ref.actor.megatron.use_mbridge",
    "VANILLA_MBRIDGE": "actor_rollout_ref.actor.megatron.vanilla_mbridge",
    "VALUE_VANILLA_MBRIDGE": "critic.megatron.vanilla_mbridge",
    "LORA_RANK": "actor_rollout_ref.model.lora.rank",
    "USE_MEGATRON_FSDP": "actor_rollout_ref.actor.megatron.use_megatron_fsdp",
    "COMMON_PP": "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
    "COMMON_VPP": "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size",
    "COMMON_CP": "actor_rollout_ref.actor.megatron.context_parallel_size",
    "COMMON_TP": "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
    "COMMON_EP": "actor_rollout_ref.actor.megatron.expert_model_parallel_size",
    "COMMON_ETP": "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size",
    "INFER_TP": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "ROUTING_REPLAY_MODE": "actor_rollout_ref.actor.megatron.router_replay.mode",
    "TOTAL_TRAIN_STEPS": "trainer.total_training_steps",
    "SAVE_FREQ": "trainer.save_freq",
    "RESUME_MODE": "trainer.resume_mode",
    "VAL_BEFORE_TRAIN": "trainer.val_before_train",
    "TEST_FREQ": "trainer.test_freq",
    "ADV_ESTIMATOR": "algorithm.adv_estimator",
    "MAX_PROMPT_LENGTH": "data.max_prompt_length",
    "MAX_RESPONSE_LENGTH": "data.max_response_length",
}


@dataclass(frozen=True)
class LevelRequest:
    """What a person asks for. `env` and `overrides` are additions of theirs; `script` (from verl's root) and `proofs`
    (regular expressions of lines that show that the feature was active) are level 4's, `steps` level 5's. `gpus` are
    those of each of `nodes`."""

    level: int
    variants: tuple[str, ...] = (DENSE,)
    model_id: str = ""
    model_path: str = ""
    train_files: str = ""
    val_files: str = ""
    reward_model: str = ""
    no_reward_model: bool = False
    dummy_config: str = ""
    enforce_eager: bool = False
    steps: int = FEWEST_STEPS
    script: str = ""
    proofs: tuple[str, ...] = ()
    bridge_tests: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    gpus: int = 8
    nodes: int = 1


@dataclass(frozen=True)
class Training:
    """One run of the wrapper. `steps` is the global step that it has to reach; `resumes` that it has to begin where the
    one before ended; `clean` that stale checkpoints go first. `env` is all that is set for it. `same_as` names the one
    whose last step it repeats."""

    name: str
    level: int
    env: Mapping[str, str]
    overrides: tuple[str, ...] = ()
    steps: int = 1
    resumes: bool = False
    clean: bool = True
    script: str = WRAPPER
    same_as: str = ""


def trainings(request: LevelRequest) -> tuple[Training, ...]:
    """The trainings of the asked level and of those below that it needs, in order. Raises UsageError."""
    _check(request)
    rest: tuple[Training, ...] = ()
    if request.level == 1:
        rest = (
            Training("level 1: save", 1, {"SAVE_FREQ": "1"}),
            Training(_RESUME, 1, {"RESUME_MODE": "auto", "SAVE_FREQ": "1"}, steps=2, resumes=True),
            Training("level 1: uninterrupted", 1, {"SAVE_FREQ": "1"}, steps=2, same_as=_RESUME),
        )
    elif request.level == 2:
        rest = tuple(Training(f"level 2: {name}", 2, _PARALLEL[name]) for name in request.variants)
    elif request.level == 3:
        rest = (Training("level 3", 3, {"USE_MEGATRON_FSDP": "True"}, overrides=_FSDP),)
    elif request.level == 4:
        rest = (Training("level 4", 4, {}, script=request.script or WRAPPER),)
    elif request.level == 5:
        long = {"VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}
        rest = (Training("level 5", 5, long, steps=request.steps),)
    smoke = Training("level 0", 0, {})
    return tuple(_complete(request, training) for training in (smoke, *rest))


def limitations(request: LevelRequest) -> tuple[str, ...]:
    """What the run will not show, in the guide's words."""
    notes = []
    if request.dummy_config:
        notes.append("dummy config: validates construction and training mechanics, not pretrained weight compatibility")
    if request.no_reward_model:
        notes.append("reward model disabled: reward-model serving is not tested")
    if request.enforce_eager:
        notes.append("enforce_eager: vLLM CUDA graph capture is not tested")
    if request.level != 1:
        notes.append("save/resume was not requested")
    if request.level != 2:
        notes.append("trivial parallelism: all parallel sizes are 1")
    if request.level != 5:
        notes.append("no convergence claim")
    else:
        notes.append("a learning signal over a short run, no benchmark convergence")
    if request.level != 4:
        notes.append("generic text-only data: features that it does not activate are not tested")
    return tuple(notes)


def _complete(request: LevelRequest, training: Training) -> Training:
    """`training`, which has only what its level changes, with all that the request sets."""
    plain = request.level == 4 and training.level == 0  # what activates the feature is level 4's alone
    env = {
        **MINIMAL,
        **_request_env(request),
        "NUM_GPUS": str(request.gpus),
        **training.env,
        **({} if plain else request.env),
        "TOTAL_TRAIN_STEPS": str(training.steps),
    }
    overrides = (*training.overrides, *_changes(request), *(() if plain else request.overrides))
    return replace(training, env=env, overrides=overrides, clean=not training.resumes)


def _request_env(request: LevelRequest) -> dict[str, str]:
    named = {
        "MODEL_ID": request.model_id,
        "MODEL_PATH": request.model_path,
        "TRAIN_FILES": request.train_files,
        "VAL_FILES": request.val_files,
        "RM_MODEL_PATH": "" if request.no_reward_model else request.reward_model,
        "DUMMY_MODEL_CONFIG_PATH": request.dummy_config,
        "USE_DUMMY_MODEL": "True" if request.dummy_config else "",
    }
    return {name: value for name, value in named.items() if value}


def _changes(request: LevelRequest) -> tuple[str, ...]:
    overrides = []
    if request.no_reward_model:
        overrides.append("reward.reward_model.enable=False")
    if request.nodes > 1:
        overrides.append(f"trainer.nnodes={request.nodes}")
    if request.enforce_eager:
        overrides.append("actor_rollout_ref.rollout.enforce_eager=True")
    return tuple(overrides)


def _check(request: LevelRequest) -> None:
    numbers = [level.number for level in LEVELS]
    if request.level not in numbers:
        valid = "\n".join(f"  {level.number}  {level.name}: {level.required_when}" for level in LEVELS)
        raise UsageError(f"there is no level {request.level}", hint=f"valid:\n{valid}")
    if unknown := [name for name in request.variants if name not in VARIANTS]:
        raise UsageError(f"level 2 has no variant {unknown[0]!r}", hint=f"valid: {', '.join(VARIANTS)}")
    if request.level == 4 and not (request.proofs and (request.script or request.overrides or request.env)):
        raise UsageError(
            "level 4 needs what activates the feature, and how its log shows that it was active",
            hint="--script FILE or --override KEY=VALUE or --env NAME=VALUE, and --proof REGEX",
        )
    if request.level == 5 and not FEWEST_STEPS <= request.steps <= MOST_STEPS:
        raise UsageError(f"level 5 takes {FEWEST_STEPS} to {MOST_STEPS} steps, not {request.steps}")
