"""The levels as a table: what each proves, and which trainings through verl's wrapper show it. Pure.

A level is one or more *trainings*: runs of verl's maintained wrapper with an environment and Hydra overrides. Every
level above 0 begins with level 0, since the guide says to start there. A variable that a script does not read would
change nothing, unnoticed: the texts of the scripts decide what they are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, nearest

WRAPPER = "tests/special_e2e/run_ppo_trainer_megatron.sh"
DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B"  # a dense one
FEWEST_STEPS, MOST_STEPS = 20, 100  # of level 5: fewer show no trend, more are a benchmark


class Level(NamedTuple):
    """A row of the guide's table. `title` is what its run is called in the summary."""

    title: str
    proves: str


LEVELS = (
    Level("LoRA + DDP", "verl imports the local Bridge, applies PEFT, wraps with DDP and finishes one training step"),
    Level("save/resume", "verl-owned checkpoint scheduling saves and reloads Bridge-built model state"),
    Level("parallelism stress", "provider settings remain correct under non-trivial Megatron parallel state"),
    Level("Megatron-FSDP", "the same provider works when verl selects Megatron-FSDP instead of DDP"),
    Level("feature-specific run", "the requested feature is activated by a targeted verl command or script"),
    Level("learning signal", "metrics move in the expected direction without zero, NaN or unstable updates"),
)


def _variables(words: str) -> Mapping[str, str]:
    return dict(word.split("=") for word in words.split())


# The guide's minimal run: short, non-vanilla Bridge, LoRA, Megatron DDP, no parallelism, one step.
MINIMAL = _variables(
    "ENGINE=vllm USE_MBRIDGE=True VANILLA_MBRIDGE=False VALUE_VANILLA_MBRIDGE=False LORA_RANK=4 "
    "USE_MEGATRON_FSDP=False COMMON_PP=1 COMMON_VPP=null COMMON_CP=1 COMMON_TP=1 INFER_TP=1 ALL_OFFLOAD=False "
    "TOTAL_TRAIN_STEPS=1 SAVE_FREQ=-1 VAL_BEFORE_TRAIN=False TEST_FREQ=-1"
)
DENSE, EXPERT = "dense", "expert"
_PARALLEL = {
    DENSE: _variables("COMMON_TP=2 COMMON_PP=2 COMMON_VPP=null COMMON_CP=1 INFER_TP=2"),
    EXPERT: _variables("COMMON_EP=2 COMMON_ETP=1 ROUTING_REPLAY_MODE=disabled"),
}
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.rollout."
_FSDP = tuple(
    f"++{part}.megatron.override_transformer_config.gradient_accumulation_fusion=False"
    for part in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
)
# The wrapper's variables → the settings that verl prints when it starts. What was asked for is checked there.
SETTINGS: Mapping[str, str] = {
    "ENGINE": f"{_ROLLOUT}name",
    "USE_MBRIDGE": f"{_ACTOR}use_mbridge",
    "VANILLA_MBRIDGE": f"{_ACTOR}vanilla_mbridge",
    "VALUE_VANILLA_MBRIDGE": "critic.megatron.vanilla_mbridge",
    "LORA_RANK": "actor_rollout_ref.model.lora.rank",
    "USE_MEGATRON_FSDP": f"{_ACTOR}use_megatron_fsdp",
    "COMMON_PP": f"{_ACTOR}pipeline_model_parallel_size",
    "COMMON_VPP": f"{_ACTOR}virtual_pipeline_model_parallel_size",
    "COMMON_CP": f"{_ACTOR}context_parallel_size",
    "COMMON_TP": f"{_ACTOR}tensor_model_parallel_size",
    "COMMON_EP": f"{_ACTOR}expert_model_parallel_size",
    "COMMON_ETP": f"{_ACTOR}expert_tensor_parallel_size",
    "INFER_TP": f"{_ROLLOUT}tensor_model_parallel_size",
    "ROUTING_REPLAY_MODE": f"{_ACTOR}router_replay.mode",
    "TOTAL_TRAIN_STEPS": "trainer.total_training_steps",
    "SAVE_FREQ": "trainer.save_freq",
    "RESUME_MODE": "trainer.resume_mode",
    "VAL_BEFORE_TRAIN": "trainer.val_before_train",
    "TEST_FREQ": "trainer.test_freq",
    "ADV_ESTIMATOR": "algorithm.adv_estimator",
}


@dataclass(frozen=True)
class LevelRequest:
    """What a person asks for. `env` and `overrides` are additions of theirs; `wrapper` is verl's, from its root.
    `script` (likewise) and `proofs` (regular expressions of lines that show that the feature was active) are level 4's,
    `steps` level 5's, `exact` level 1's: both steps again without an interruption. `checks` cites Bridge's focused
    checks, which ran elsewhere."""

    level: int
    variants: tuple[str, ...] = (DENSE,)
    model_id: str = ""
    model_path: str = ""
    train_files: str = ""
    val_files: str = ""
    reward_model: str = ""
    no_reward_model: bool = False
    dummy_config: str = ""
    steps: int = FEWEST_STEPS
    exact: bool = False
    wrapper: str = WRAPPER
    script: str = ""
    proofs: tuple[str, ...] = ()
    bridge_tests: tuple[str, ...] = ()
    checks: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    gpus: int = 8


@dataclass(frozen=True)
class Training:
    """One run of a script. `steps` is the global step that it has to reach; `resumes` that it has to begin where the
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


def trainings(request: LevelRequest, scripts: Mapping[str, str] | None = None) -> tuple[Training, ...]:
    """The trainings of the asked level and of level 0, in order. `scripts` are the texts of their scripts by path; one
    without a text is given everything. Raises UsageError."""
    _check(request)
    save = Training("level 1: save", 1, {"SAVE_FREQ": "1"})
    resume = Training("level 1: resume", 1, {"RESUME_MODE": "auto", "SAVE_FREQ": "1"}, steps=2, resumes=True)
    whole = Training("level 1: uninterrupted", 1, {"SAVE_FREQ": "1"}, steps=2, same_as=resume.name)
    learning = {"VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}
    rest = {
        1: [save, resume, *([whole] if request.exact else [])],
        2: [Training(f"level 2: {name}", 2, _PARALLEL[name]) for name in request.variants],
        3: [Training("level 3", 3, {"USE_MEGATRON_FSDP": "True"}, overrides=_FSDP)],
        4: [Training("level 4", 4, {})],
        5: [Training("level 5", 5, learning, steps=request.steps)],
    }.get(request.level, [])
    return tuple(_complete(request, training, scripts or {}) for training in (Training("level 0", 0, {}), *rest))


def limitations(request: LevelRequest) -> tuple[str, ...]:
    """What the run will not show, in the guide's words."""
    dummy = "dummy config: validates construction and training mechanics, not pretrained weight compatibility"
    convergence = "a learning signal over a short run, no benchmark convergence"
    notes = (
        (dummy, request.dummy_config),
        ("reward model disabled: reward-model serving is not tested", request.no_reward_model),
        (
            "enforce_eager: vLLM CUDA graph capture is not tested",
            any("enforce_eager=T" in one for one in request.overrides),
        ),
        ("save/resume was not requested", request.level != 1),
        ("trivial parallelism: all parallel sizes are 1", request.level != 2 and not request.script),
        (convergence if request.level == 5 else "no convergence claim", True),
        ("generic text-only data: features that it does not activate are not tested", request.level != 4),
    )
    return tuple(note for note, holds in notes if holds)


def _complete(request: LevelRequest, training: Training, scripts: Mapping[str, str]) -> Training:
    """`training`, which has only what its level changes, with all that the request sets and its script reads."""
    script = request.script if training.level == 4 and request.script else request.wrapper
    is_own = script != request.wrapper
    plain = request.level == 4 and training.level == 0  # what activates the feature is level 4's alone
    wished = {
        "MODEL_PATH": request.model_path,
        "TRAIN_FILES": request.train_files,
        "VAL_FILES": request.val_files,
        "RM_MODEL_PATH": "" if request.no_reward_model else request.reward_model,
        "DUMMY_MODEL_CONFIG_PATH": request.dummy_config,
        "USE_DUMMY_MODEL": "True" if request.dummy_config else "",
    }
    named = {name: value for name, value in wished.items() if value}
    # An example script of verl's has settings of its own; it still has to take the path under test.
    env = {name: value for name, value in MINIMAL.items() if not is_own or name.endswith("MBRIDGE")}
    env |= {"MODEL_ID": request.model_id} if request.model_id else {}
    env |= {"NUM_GPUS": str(request.gpus), **named, **training.env, **({} if plain else request.env)}
    env["TOTAL_TRAIN_STEPS"] = str(training.steps)
    overrides = [*training.overrides]
    overrides += ["reward.reward_model.enable=False"] if request.no_reward_model else []
    if is_own:
        overrides += ["trainer.nnodes=1", f"trainer.n_gpus_per_node={request.gpus}"]
        overrides += [f"trainer.total_training_steps={training.steps}"]
    overrides += [] if plain else request.overrides
    if script in scripts:
        own = {name for name in named if not any(f"{_BY_OVERRIDE.get(name)}=" in each for each in request.overrides)}
        env = _as_read(scripts[script], env, script, {*own, *request.env} if is_own else {*env})
    return replace(training, env=env, overrides=tuple(overrides), clean=not training.resumes, script=script)


# -- what a script reads -----------------------------------------------------------------------------------------------

_READ = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)\b")
_SET = re.compile(r"(?:export )?([A-Z][A-Z0-9_]*)=")
# Read by verl, Ray, CUDA, uv and Hugging Face themselves, not by the wrapper.
_OTHERS = re.compile(
    r"(?:VERL|RAY|CUDA|NCCL|HF|HYDRA|VLLM|TORCH|NVTE|PYTORCH|HIP|ROCR|WANDB|TINY|OMP|GLOO|UV)_[A-Z0-9_]+"
)
# How Hydra takes what a script has no variable for.
_BY_OVERRIDE = {
    "MODEL_PATH": "actor_rollout_ref.model.path",
    "TRAIN_FILES": "data.train_files",
    "VAL_FILES": "data.val_files",
    "RM_MODEL_PATH": "reward.reward_model.model_path",
}
# What a verl that has no such variable has anyway: it does not know the feature that the value turns off.
_WITHOUT = {"USE_MEGATRON_FSDP": "False", "ROUTING_REPLAY_MODE": "disabled"}


def variables(text: str) -> frozenset[str]:
    """The variables that a shell script reads from its environment, as far as they are in capitals. One that it sets
    itself, at the start of a line, is its own from there on."""
    read: set[str] = set()
    own: set[str] = set()
    for line in text.splitlines():
        read |= {name for name in _READ.findall(line) if name not in own} if not line.startswith("#") else set()
        own |= {match[1]} if (match := _SET.match(line)) else set()
    return frozenset(read)


def _as_read(text: str, env: Mapping[str, str], where: str, required: Iterable[str]) -> dict[str, str]:
    """`env` as far as the script in `text` reads it. Raises UsageError for a variable of `required` that it does not
    read, unless its value asks for nothing at this revision of verl."""
    defined = variables(text)
    read = {name: value for name, value in env.items() if name in defined or _OTHERS.fullmatch(name)}
    for name in sorted(required):
        if name not in read and _WITHOUT.get(name) != env[name]:
            near = nearest(name, defined)
            override = f"--override {_BY_OVERRIDE.get(name, 'KEY')}={env[name]}"
            raise UsageError(
                f"{where} does not read {name}{f'; did you mean {near}?' if near else ''}",
                hint="it is misspelt, or of another verl: Megatron-Bridge needs v0.7.0, Megatron-FSDP v0.8.0; else "
                f"{override}",
            )
    return read


def _check(request: LevelRequest) -> None:
    routed = request.model_path or request.model_id not in ("", DEFAULT_MODEL)
    if request.level == 2 and EXPERT in request.variants and not routed:
        raise UsageError(
            f"--variant {EXPERT} needs a routed checkpoint, and {DEFAULT_MODEL} is dense",
            hint="--model-id ID or --model-path DIR names one",
        )
    if request.level == 4 and not (request.proofs and (request.script or request.overrides or request.env)):
        raise UsageError(
            "level 4 needs what activates the feature, and how its log shows that it was active",
            hint="--script FILE or --override KEY=VALUE or --env NAME=VALUE, and --proof REGEX",
        )
    if request.level == 5 and not FEWEST_STEPS <= request.steps <= MOST_STEPS:
        raise UsageError(f"level 5 takes {FEWEST_STEPS} to {MOST_STEPS} steps, not {request.steps}")
    if request.dummy_config and not (request.model_path and request.dummy_config.startswith("/")):
        raise UsageError(
            "--dummy-config takes an absolute path on the host, and --model-path a directory there with the tokenizer",
            hint="verl's scripts/init_random_model.py makes the model from both",
        )
