"""The guide's levels: which trainings a level has, with which environment and overrides, and what is refused."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.levels.levels import MINIMAL, LevelRequest, trainings

FUSION = "megatron.override_transformer_config.gradient_accumulation_fusion=False"
FEATURE = {"overrides": ("a.b=c",), "proofs": ("active",)}

# level, more of the request: name of the last training, what its environment has beyond level 0's, its overrides, steps
TABLE = [
    (0, {}, "level 0", {}, (), 1),
    (1, {}, "level 1: uninterrupted", {"SAVE_FREQ": "1", "TOTAL_TRAIN_STEPS": "2"}, (), 2),
    (2, {}, "level 2: dense", {"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2"}, (), 1),
    (2, {"variants": ("dense", "expert")}, "level 2: expert",
     {"COMMON_EP": "2", "COMMON_ETP": "1", "ROUTING_REPLAY_MODE": "disabled"}, (), 1),
    (3, {}, "level 3", {"USE_MEGATRON_FSDP": "True"},
     (f"++actor_rollout_ref.actor.{FUSION}", f"++actor_rollout_ref.ref.{FUSION}", f"++critic.{FUSION}"), 1),
    (4, {**FEATURE, "env": {"X": "1"}}, "level 4", {"X": "1"}, ("a.b=c",), 1),
    (5, {}, "level 5", {"TOTAL_TRAIN_STEPS": "20", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}, (), 20),
    (5, {"steps": 100}, "level 5", {"TOTAL_TRAIN_STEPS": "100", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}, (),
     100),
]  # fmt: skip


@pytest.mark.parametrize(
    ("level", "more", "name", "beyond", "overrides", "steps"), TABLE, ids=[f"{row[2]} {row[5]}" for row in TABLE]
)
def test_a_level_ends_with_its_training_after_the_smoke(
    level: int, more: dict[str, object], name: str, beyond: dict[str, str], overrides: tuple[str, ...], steps: int
) -> None:
    first, *_, last = [*trainings(LevelRequest(level, **more)), *trainings(LevelRequest(level, **more))[-1:]]  # type: ignore[arg-type]
    assert (first.name, first.level, first.clean) == ("level 0", 0, True)
    assert {name: first.env[name] for name in MINIMAL} == dict(MINIMAL)
    assert (last.name, last.steps, last.overrides) == (name, steps, overrides)
    assert {key: value for key, value in last.env.items() if first.env.get(key) != value} == beyond


def test_a_resume_keeps_the_checkpoints_of_the_save_before_it() -> None:
    _, save, resume, whole = trainings(LevelRequest(1))
    assert (save.clean, save.resumes, save.env["SAVE_FREQ"]) == (True, False, "1")
    assert (resume.clean, resume.resumes) == (False, True)
    assert (whole.clean, whole.resumes, whole.same_as) == (True, False, resume.name)


def test_a_persons_own_settings_go_into_every_training_but_never_change_its_steps() -> None:
    planned = trainings(LevelRequest(1, env={"MICRO_BSZ": "1", "TOTAL_TRAIN_STEPS": "9"}, overrides=("a=b",)))
    assert [training.env["MICRO_BSZ"] for training in planned] == ["1"] * 4
    assert [training.env["TOTAL_TRAIN_STEPS"] for training in planned] == ["1", "1", "2", "2"]
    assert all(training.overrides == ("a=b",) for training in planned)


REFUSED = [
    ({"level": 6}, "there is no level 6"),
    ({"level": 2, "variants": ("wide",)}, "level 2 has no variant 'wide'"),
    ({"level": 4}, "level 4 needs what activates the feature"),
    ({"level": 4, "overrides": ("a=b",)}, "level 4 needs what activates the feature"),
    ({"level": 5, "steps": 19}, "level 5 takes 20 to 100 steps, not 19"),
    ({"level": 5, "steps": 101}, "level 5 takes 20 to 100 steps, not 101"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wish_that_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainings(LevelRequest(**arguments))  # type: ignore[arg-type]
