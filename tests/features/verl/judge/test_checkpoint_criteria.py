"""Level 1's checkpoints by their files, and a step that was resumed beside the same one without an interruption."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.judge.checkpoint_criteria import READ, WRITTEN, checkpoint_files, same_step
from ci_tasks.features.verl.judge.hook_records import LoadedCheckpoint, SavedFiles
from ci_tasks.features.verl.judge.hooked_training import HookedTraining
from ci_tasks.features.verl.judge.log_records import TrainingFacts
from ci_tasks.features.verl.judge.training_run import TrainingRun
from ci_tasks.features.verl.levels.criterion import CONTRADICTED, NOT_SEEN, SHOWN
from ci_tasks.features.verl.levels.levels import LevelRequest, Training

SAVE, RESUME = Training("", 1, {}), Training("", 1, {}, steps=2, resumes=True)
WHOLE = SavedFiles("checkpoint", "/c/global_step_1", 1, 0, {"model.json": 10, "a/0.distcp": 90})
READ_BACK = LoadedCheckpoint("/c/global_step_1/actor", 0, {"model.json": 10})
UNSEEN, IS_WRITTEN = (WRITTEN, NOT_SEEN, "no process noted one"), (WRITTEN, SHOWN, "2 files, 100 bytes")
CASES: dict[str, tuple[Training, HookedTraining, list[tuple[str, str, str]]]] = {
    "none of a resume": (RESUME, HookedTraining(), [UNSEEN, (READ, NOT_SEEN, "no process noted one")]),
    "whole": (SAVE, HookedTraining(saved=(WHOLE, WHOLE)), [IS_WRITTEN]),
    "read back": (RESUME, HookedTraining(saved=(WHOLE,), loaded=(READ_BACK,)),
     [IS_WRITTEN, (READ, SHOWN, "1 files, 10 bytes")]),
    "of another step": (RESUME,
     HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c/global_step_10", 0, {"model.json": 10}),)),
     [IS_WRITTEN, (READ, CONTRADICTED, "/c/global_step_10 is not of global_step_1")]),
    "empty": (SAVE, HookedTraining(saved=(SavedFiles("checkpoint", "/c", files={"model.json": 0}),)),
     [(WRITTEN, NOT_SEEN, "/c/model.json is empty")]),
    "empty read": (RESUME,
     HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c/global_step_1", 0, {"model.json": 0}),)),
     [IS_WRITTEN, (READ, CONTRADICTED, "/c/global_step_1/model.json is empty")]),
    "unreadable": (RESUME,
     HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c/global_step_1", error="KeyError: 'a'"),)),
     [IS_WRITTEN, (READ, CONTRADICTED, "/c/global_step_1: KeyError: 'a'")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_files_and_sizes_decide(name: str) -> None:
    training, hooked, expected = CASES[name]
    run = TrainingRun(training, TrainingFacts("", 1), LevelRequest(1), hooked=hooked)
    assert [(found.name, found.outcome, found.evidence) for found in checkpoint_files(run)] == expected


METRICS = {"actor/pg_loss": 0.5, "response_length/mean": 7.0, "timing_s/step": 3.0, "actor/mfu": 0.1}
FILES = {"actor/model.safetensors": "a", "actor/extra/__0_0.distcp": "b", "data.pt": "c", "actor/config.json": "d"}
# What the resumed step has otherwise: metrics, files; the outcome, whether it decides, and why.
STEPS: list[tuple[dict[str, float], dict[str, str] | None, str, bool, str]] = [
    ({}, FILES, SHOWN, True, "all 2 metrics of global step 2 are equal, and 1 file of tensors after it"),
    ({"timing_s/step": 9.0, "actor/mfu": 9.0}, FILES, SHOWN, True, "all 2 metrics"),
    ({}, {**FILES, "data.pt": "x", "actor/extra/__0_0.distcp": "x"}, SHOWN, True, "1 file of tensors"),
    # A resume whose optimizer's state is lost has the same metrics and other tensors after them.
    ({}, {**FILES, "actor/model.safetensors": "x"}, NOT_SEEN, True, "1 of 1 files of tensors differ after it"),
    ({}, {}, NOT_SEEN, False, "the files of its tensors were not seen"),
    ({"response_length/mean": 8.0}, FILES, NOT_SEEN, False, "such as response_length/mean: 8 and 7; sampling may"),
    ({}, None, NOT_SEEN, False, "no metrics of global step 2 in both"),
]


@pytest.mark.parametrize(("metrics", "files", "outcome", "decides", "why"), STEPS)
def test_equal_metrics_and_other_tensors_are_no_proof(
    metrics: dict[str, float], files: dict[str, str] | None, outcome: str, decides: bool, why: str
) -> None:
    resumed = TrainingFacts("", 1, metrics={2: {**METRICS, **metrics}}, files=files) if files is not None else None
    whole = Training("", 1, {}, steps=2, same_as="level 1: resume")
    run = TrainingRun(whole, TrainingFacts("", 1, metrics={2: METRICS}, files=FILES), LevelRequest(1))
    found = same_step(run, resumed)
    assert (found.outcome, not found.optional, why in found.evidence) == (outcome, decides, True), found.evidence
