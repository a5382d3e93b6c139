"""The guide's levels: which trainings a level has, what their scripts are given, and what is refused."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.levels.levels import MINIMAL, WRAPPER, LevelRequest, Training, trainings

FUSION = "megatron.override_transformer_config.gradient_accumulation_fusion=False"
FEATURE = {"overrides": ("a.b=c",), "proofs": ("active",)}

# level, more of the request: name of the last training, what its environment has beyond level 0's, its overrides, steps
TABLE = [
    (0, {}, "level 0", {}, (), 1),
    (1, {}, "level 1: resume", {"SAVE_FREQ": "1", "TOTAL_TRAIN_STEPS": "2", "RESUME_MODE": "auto"}, (), 2),
    (1, {"exact": True}, "level 1: uninterrupted", {"SAVE_FREQ": "1", "TOTAL_TRAIN_STEPS": "2"}, (), 2),
    (2, {}, "level 2: dense", {"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2"}, (), 1),
    (2, {"variants": ("dense", "expert"), "model_path": "/m"}, "level 2: expert",
     {"COMMON_EP": "2", "COMMON_ETP": "1", "ROUTING_REPLAY_MODE": "disabled"}, (), 1),
    (3, {}, "level 3", {"USE_MEGATRON_FSDP": "True"},
     (f"++actor_rollout_ref.actor.{FUSION}", f"++actor_rollout_ref.ref.{FUSION}", f"++critic.{FUSION}"), 1),
    (4, {**FEATURE, "env": {"X": "1"}}, "level 4", {"X": "1"}, ("a.b=c",), 1),
    (5, {}, "level 5", {"TOTAL_TRAIN_STEPS": "20", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}, (), 20),
]  # fmt: skip


@pytest.mark.parametrize(
    ("level", "more", "name", "beyond", "overrides", "steps"), TABLE, ids=[f"{row[2]} {row[5]}" for row in TABLE]
)
def test_a_level_ends_with_its_training_after_the_smoke(
    level: int, more: dict[str, object], name: str, beyond: dict[str, str], overrides: tuple[str, ...], steps: int
) -> None:
    first, *_, last = [*trainings(LevelRequest(level, **more)), *trainings(LevelRequest(level, **more))[-1:]]  # type: ignore[arg-type]
    assert (first.name, first.level) == ("level 0", 0)
    assert {name: first.env[name] for name in MINIMAL} == dict(MINIMAL)
    assert (last.name, last.steps, last.overrides) == (name, steps, overrides)
    assert {key: value for key, value in last.env.items() if first.env.get(key) != value} == beyond


def test_a_resume_keeps_the_checkpoints_of_the_save_before_it() -> None:
    _, save, resume, whole = trainings(LevelRequest(1, exact=True))
    assert (save.resumes, save.env["SAVE_FREQ"]) == (False, "1")
    assert resume.resumes
    assert (whole.resumes, whole.same_as) == (False, resume.name)


def test_a_persons_own_settings_go_into_every_training_but_never_change_its_steps() -> None:
    planned = trainings(LevelRequest(1, env={"MICRO_BSZ": "1", "TOTAL_TRAIN_STEPS": "9"}, overrides=("a=b",)))
    assert [training.env["MICRO_BSZ"] for training in planned] == ["1"] * 3
    assert [training.env["TOTAL_TRAIN_STEPS"] for training in planned] == ["1", "1", "2"]
    assert all(training.overrides == ("a=b",) for training in planned)


REFUSED = [
    ({"level": 2, "variants": ("expert",)}, "--variant expert needs a routed checkpoint"),
    ({"level": 4}, "level 4 needs what activates the feature"),
    ({"level": 4, "proofs": ("(",), "env": {"A": "1"}}, "--proof '\\(' is no regular expression"),
    ({"level": 5, "steps": 19}, "level 5 takes 20 to 100 steps, not 19"),
    ({"level": 0, "model_path": "/m", "dummy_config": "c.json"}, "--dummy-config takes an absolute path"),
    ({"level": 0, "dummy_config": "/c.json"}, "--dummy-config takes an absolute path"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wish_that_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainings(LevelRequest(**arguments))  # type: ignore[arg-type]


# -- what a script reads -----------------------------------------------------------------------------------------------

SCRIPT = """\
export LAUNCHED=1
# $ZZZ is read by nobody
ENGINE=${ENGINE:-"vllm"}
COMMON_TP=${COMMON_TP:-2}
TRAIN_TP=${TRAIN_TP:-$COMMON_TP}
[ -n "$DUMMY_MODEL_CONFIG_PATH" ] || exit 1
lower=${lower:-1} tp=$LAUNCHED
"""
WITHOUT = {**dict.fromkeys(MINIMAL, ""), "NUM_GPUS": "", "COMMON_TP": ""}
READS_ALL = SCRIPT + "".join(f"echo ${name}\n" for name in WITHOUT)


def given(wrapper: str, env: dict[str, str]) -> dict[str, str]:
    return dict(trainings(LevelRequest(0, env=env), {WRAPPER: wrapper})[0].env)


@pytest.mark.parametrize(
    ("name", "near"), [("COMON_TP", "COMMON_TP"), ("ENGIN", "ENGINE"), ("LAUNCHED", ""), ("ZZZ", "")]
)
def test_what_nobody_reads_is_refused(name: str, near: str) -> None:
    """Also what a script sets itself before it reads it."""
    with pytest.raises(UsageError) as refused:
        given(READS_ALL, {name: "1"})
    assert refused.value.message == f"{WRAPPER} does not read {name}{f'; did you mean {near}?' if near else ''}"


@pytest.mark.parametrize(("name", "off"), [("USE_MEGATRON_FSDP", "False"), ("ROUTING_REPLAY_MODE", "disabled")])
def test_what_turns_off_a_feature_that_this_verl_does_not_know_is_not_asked_of_it(name: str, off: str) -> None:
    older = READS_ALL.replace(f"echo ${name}\n", "")
    assert name not in given(older, {name: off}) and given(older, {name: off})["ENGINE"] == "vllm"
    with pytest.raises(UsageError, match=f"does not read {name}"):
        given(older, {name: "True"})


def script_of_level_4(script: str, **more: object) -> Training:
    wish = LevelRequest(4, script="a.sh", proofs=("x",), model_path="/m", **more)  # type: ignore[arg-type]
    smoke, last = trainings(wish, {WRAPPER: READS_ALL + "$MODEL_PATH\n", "a.sh": script})
    assert {name: smoke.env[name] for name in MINIMAL} == dict(MINIMAL)
    return last


def test_a_script_of_level_4_is_given_what_it_reads_and_nothing_of_the_wrappers_sizes() -> None:
    """An example script keeps its own parallel sizes and LoRA, and is still asked for the path under test."""
    reads = "tp=${COMMON_TP:-8} rank=$LORA_RANK offload=$ALL_OFFLOAD bridge=$VANILLA_MBRIDGE\npath=$MODEL_PATH\n"
    last = script_of_level_4(reads, env={"COMMON_TP": "4"})
    assert last.script == "a.sh" and last.env == {"COMMON_TP": "4", "VANILLA_MBRIDGE": "False", "MODEL_PATH": "/m"}
    assert {"trainer.total_training_steps=1", "trainer.n_gpus_per_node=8", "trainer.nnodes=1"} <= set(last.overrides)


@pytest.mark.parametrize(
    ("env", "message"), [({"LORA_RNK": "4"}, "LORA_RNK; did you mean LORA_RANK?"), ({}, "MODEL_PATH")]
)
def test_a_variable_that_a_script_of_level_4_does_not_read_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        script_of_level_4("echo $LORA_RANK\n", env=env)
    assert refused.value.message == f"a.sh does not read {message}"
    if not env:
        assert "--override actor_rollout_ref.model.path=/m" in refused.value.hint
        script_of_level_4("echo $LORA_RANK\n", overrides=("actor_rollout_ref.model.path=/m",))
