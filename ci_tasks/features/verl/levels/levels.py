"""The levels as a table: what each proves, which trainings through verl's wrapper show it, and the one step of a job
that runs them: settings, the preflight of `step.sh`, then the trainings one after another, in one container. Pure.

A level is one or more *trainings*: runs of verl's maintained wrapper with an environment and Hydra overrides. Every
level above 0 begins with level 0, since the guide says to start there. A variable that a script does not read would
change nothing, unnoticed: the texts of the scripts decide what they are given.
"""

from __future__ import annotations

import pkgutil
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
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
    Level("learning signal", "learning-signal passed over a short run; no claim of benchmark convergence"),
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
    one before ended, else stale checkpoints go first. `env` is everything that is set for it. `same_as` names the one
    whose last step it repeats."""

    name: str
    level: int
    env: Mapping[str, str]
    overrides: tuple[str, ...] = ()
    steps: int = 1
    resumes: bool = False
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
    notes = {
        dummy: request.dummy_config,
        "reward model disabled: reward-model serving is not tested": request.no_reward_model,
        "enforce_eager: vLLM CUDA graph capture is not tested": "enforce_eager=T" in " ".join(request.overrides),
        "save/resume was not requested": request.level != 1,
        "trivial parallelism: all parallel sizes are 1": request.level != 2 and not request.script,
        "a learning signal over a short run, no benchmark convergence": request.level == 5,
        "no convergence claim": request.level != 5,
        "generic text-only data: features that it does not activate are not tested": request.level != 4,
    }
    return tuple(note for note, holds in notes.items() if holds)


def _complete(request: LevelRequest, training: Training, scripts: Mapping[str, str]) -> Training:
    """`training`, which has only what its level changes, with everything that the request sets and its script reads."""
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
    rule_reward = ["reward.reward_model.enable=False"] if request.no_reward_model else []
    here = ["trainer.nnodes=1", f"trainer.n_gpus_per_node={request.gpus}"]
    here = [*here, f"trainer.total_training_steps={training.steps}"] if is_own else []
    overrides = (*training.overrides, *rule_reward, *here, *([] if plain else request.overrides))
    if script in scripts:
        own = {name for name in named if not any(f"{_BY_OVERRIDE.get(name)}=" in each for each in request.overrides)}
        env = _as_read(scripts[script], env, script, {*own, *request.env} if is_own else {*env})
    return replace(training, env=env, overrides=overrides, script=script)


# -- what a script reads -----------------------------------------------------------------------------------------------

_READ = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)\b")
_SET = re.compile(r"^(?:export )?([A-Z][A-Z0-9_]*)=")
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


def variables(text: str) -> set[str]:
    """The variables that a shell script reads from its environment, as far as they are in capitals. One that it sets
    itself, at the start of a line, is its own from there on."""
    read, own = set[str](), set[str]()
    for line in text.splitlines():
        read.update(set(_READ.findall(line)) - own if not line.startswith("#") else ())
        own.update(_SET.findall(line))
    return read


def _as_read(text: str, env: Mapping[str, str], where: str, required: Iterable[str]) -> dict[str, str]:
    """`env` as far as the script in `text` reads it. Raises UsageError for a variable of `required` that it does not
    read, unless its value asks for nothing at this revision of verl."""
    defined = variables(text)
    read = {name: value for name, value in env.items() if name in defined or _OTHERS.fullmatch(name)}
    for name in sorted(required):
        if name not in read and _WITHOUT.get(name) != env[name]:
            versions = "misspelled, or from another verl: Megatron-Bridge needs v0.7.0, Megatron-FSDP v0.8.0"
            hint = f"{versions}; else --override {_BY_OVERRIDE.get(name, 'KEY')}={env[name]}"
            near = nearest(name, defined)
            raise UsageError(f"{where} does not read {name}{f'; did you mean {near}?' if near else ''}", hint=hint)
    return read


def _check(request: LevelRequest) -> None:
    routed = request.model_path or request.model_id not in ("", DEFAULT_MODEL)
    activated = request.script or request.overrides or request.env
    problem = hint = ""
    if request.level == 2 and EXPERT in request.variants and not routed:
        problem = f"--variant {EXPERT} needs a routed checkpoint, and {DEFAULT_MODEL} is dense"
        hint = "--model-id ID or --model-path DIR names one"
    elif request.level == 4 and not (request.proofs and activated):
        problem = "level 4 needs what activates the feature, and how its log shows that it was active"
        hint = "--script FILE or --override KEY=VALUE or --env NAME=VALUE, and --proof REGEX"
    elif request.level == 5 and not FEWEST_STEPS <= request.steps <= MOST_STEPS:
        problem = f"level 5 takes {FEWEST_STEPS} to {MOST_STEPS} steps, not {request.steps}"
    elif request.dummy_config and not (request.model_path and request.dummy_config.startswith("/")):
        problem = "--dummy-config takes an absolute path on the host, and --model-path a directory with the tokenizer"
        hint = "verl's scripts/init_random_model.py makes the model from both"
    for proof in request.proofs:
        try:
            re.compile(proof)
        except re.error as error:
            problem = f"--proof {proof!r} is no regular expression: {error}"
    if problem:
        raise UsageError(problem, hint=hint)


# -- the step ----------------------------------------------------------------------------------------------------------

BRIDGE, VERL = "Megatron-Bridge", "verl"  # the two trees, side by side in the run's workspace
_ROOM_GB = "20"  # for a small checkpoint, its cache and what verl saves
_LAUNCH = re.compile(r"^LAUNCH=\(.*?^fi$", re.MULTILINE | re.DOTALL)
# What a training is given that the checks before it have to see as well.
_PREFLIGHT = re.compile(
    "MODEL_ID|MODEL_PATH|RM_MODEL_PATH|TRAIN_FILES|VAL_FILES|DUMMY_MODEL_CONFIG_PATH|HF_HOME|HF_HUB_CACHE|ENGINE|DEVICE"
    "|VERL_USE_UV|UV_.*|RAY_ADDRESS|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES"
)
_WORKERS_PATH = '"++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH=${PYTHONPATH}"'


def render(
    request: LevelRequest, planned: Sequence[Training], wrapper: str, *, simulated: bool = False, contained: bool = True
) -> str:
    """The text of the step, for bash. `wrapper` is the text of verl's. A `simulated` run, on a host that simulates
    GPUs, has its own home: the sample's models and data are not worth keeping. One that is not `contained` leaves
    others' Ray alone."""
    given = {**request.env, **planned[0].env}
    settings = {
        "cited": request.checks,
        "dummy": request.dummy_config,
        "least": "1" if request.dummy_config else _ROOM_GB,
        "own_ray": "1" if contained or simulated else "",
        "rule_reward": "1" if request.no_reward_model else "",
        "simulated": "1" if simulated else "",
        **{f"export {name}": given[name] for name in given if _PREFLIGHT.fullmatch(name)},
    }
    compared = {name for training in planned if training.same_as for name in (training.name, training.same_as)}
    launch, text = _LAUNCH.search(wrapper), (pkgutil.get_data(__name__, "step.sh") or b"").decode()
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    lines.append(f"tests=({' '.join(map(shlex.quote, request.bridge_tests))})")
    lines.append(re.sub("(?m)^#:.*\n", "", text).replace("@launch@", launch[0] if launch else "LAUNCH=(python3)"))
    for training in planned:
        name = shlex.quote(training.name)
        lines.append(f"train {name} {int(not training.resumes)} {shlex.quote(command(training))}")
        lines += [f"hashes {name} {training.steps}"] if training.name in compared else []
    return "\n".join(lines) + "\n"


def command(training: Training) -> str:
    """The wrapper with its environment and overrides, as one line for a shell in verl's root."""
    env = [f"{name}={shlex.quote(value)}" for name, value in training.env.items()]
    overrides = [shlex.quote(override) for override in training.overrides]
    return " ".join([*env, "bash", shlex.quote(training.script), _WORKERS_PATH, *overrides])
