"""Whose failure it is: the cause first, then the frames, and words last."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.verl_altered import IN_BRIDGE, PLACES, raised
from ci_tasks.features.verl.judge.attribution import CHANGE, ENVIRONMENT, UNCLEAR, attribute, stage_of_check
from ci_tasks.features.verl.judge.training_log import TrainingFailure, read_run
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "attributions.json")).fixture()
attribute = kept.of(attribute)
stage_of_check = kept.of(stage_of_check)

OWNERS = {"Blocked": ENVIRONMENT, "Fail": CHANGE, "Not proven": UNCLEAR}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("right", "text"), [(right, text) for right, texts in IN_BRIDGE.items() for text in texts])
def test_an_exception_out_of_bridge_is_blamed_by_its_cause_and_not_by_its_words(
    place: str, right: str, text: str
) -> None:
    log = f"ci-tasks-verl: begin: level 0\nmodule: 1\n{raised(place, text)}"
    error = read_run([log.encode()]).trainings["level 0"].error
    assert error is not None
    assert attribute(error, True, "/w/Megatron-Bridge").owner == OWNERS[right], error


CASES = [
    ("FileNotFoundError: /data/train.parquet", "", False, "the data", ENVIRONMENT),
    ("ValueError: x", "/v/verl/experimental/reward_loop/reward_loop.py:f", True, "the reward model", ENVIRONMENT),
    ("ModuleNotFoundError: No module named 'modelopt'", "", True, "package setup", ENVIRONMENT),
    ("ModuleNotFoundError: No module named 'megatron.bridge'", "", False, "the import of the local", ENVIRONMENT),
    ("RuntimeError: Engine core initialization failed", "", False, "the rollout engine", ENVIRONMENT),
    ("RuntimeError: Engine core initialization failed", "", True, "the rollout engine", UNCLEAR),
    ("SyntaxError: unmatched ')'", "/b/megatron/bridge/peft/lora.py:", False, "the Bridge checkout's own", CHANGE),
    ("ValueError: no x", "/b/megatron/bridge/peft/lora.py:transform", True, "LoRA", CHANGE),
    ("KeyError: 'visual'", "/b/megatron/bridge/training/checkpointing.py:save", True, "checkpoint save/load", CHANGE),
    ("Could not override 'a.b'.", "", False, "verl's configuration", ENVIRONMENT),
    ("RuntimeError: who knows", "/v/verl/trainer/ppo/ray_trainer.py:fit", True, "the training step", CHANGE),
    ("A worker died or was killed while executing a task", "", True, "Ray or the death of a process", UNCLEAR),
]


@pytest.mark.parametrize(("text", "frame", "constructed", "stage", "owner"), CASES)
def test_a_failure_has_a_stage_and_an_owner(text: str, frame: str, constructed: bool, stage: str, owner: str) -> None:
    found = attribute(TrainingFailure.said(text, (frame,) if frame else ()), constructed)
    assert (found.stage.name[: len(stage)], found.owner) == (stage, owner)


def test_without_a_word_how_far_it_came_decides_and_the_reward_models_path_is_its_own() -> None:
    assert [attribute(None, constructed).owner for constructed in (False, True)] == [ENVIRONMENT, UNCLEAR]
    error = TrainingFailure.said("ValueError: Invalid repository ID or local directory specified: '/models/rm'.")
    assert attribute(error, True, reward=["", "/models/rm"]).stage.name == "the reward model"
    assert attribute(error, True, reward=["/other"]).stage.name != "the reward model"


def test_an_import_check_that_fails_in_bridges_own_code_is_no_wrong_path() -> None:
    for said in ("NameError: name 'foo' is not defined", "KeyError: 'k' (/r/src/megatron/bridge/models/a.py)"):
        assert stage_of_check("import-driver", said).owner == CHANGE
    for said in ("RuntimeError: no driver (/p/te/a.py)", "ImportError: install TE (/r/megatron/bridge/a.py)"):
        assert stage_of_check("import-driver", said).owner == ENVIRONMENT
    assert stage_of_check("import-driver", "ModuleNotFoundError: No module named 'transformers'").owner == ENVIRONMENT
    uv = "uv sync --frozen --extra vllm: error: the current Python platform is not compatible"
    assert stage_of_check("uv", uv).name == "the start of the job", "the words of a command decide nothing"
