"""Level 1's checkpoints by their files."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.judge.checkpoint_criteria import READ, WRITTEN, checkpoint_files
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
    "none": (SAVE, HookedTraining(), [UNSEEN]),
    "none of a resume": (RESUME, HookedTraining(), [UNSEEN, (READ, NOT_SEEN, "no process noted one")]),
    "whole": (SAVE, HookedTraining(saved=(WHOLE, WHOLE)), [IS_WRITTEN]),
    "read back": (
        RESUME,
        HookedTraining(saved=(WHOLE,), loaded=(READ_BACK,)),
        [IS_WRITTEN, (READ, SHOWN, "1 files, 10 bytes")],
    ),
    "of another step": (
        RESUME,
        HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c/global_step_10", 0, {"model.json": 10}),)),
        [IS_WRITTEN, (READ, CONTRADICTED, "/c/global_step_10 is not of global_step_1")],
    ),
    "empty": (
        SAVE,
        HookedTraining(saved=(SavedFiles("checkpoint", "/c", files={"model.json": 0}),)),
        [(WRITTEN, NOT_SEEN, "/c/model.json is empty")],
    ),
    "no file": (SAVE, HookedTraining(saved=(SavedFiles("adapter", "/c"),)), [(WRITTEN, NOT_SEEN, "/c has no file")]),
    "empty read": (
        RESUME,
        HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c/global_step_1", 0, {"model.json": 0}),)),
        [IS_WRITTEN, (READ, CONTRADICTED, "/c/global_step_1/model.json is empty")],
    ),
    "unreadable": (
        RESUME,
        HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c/global_step_1", error="KeyError: 'a'"),)),
        [IS_WRITTEN, (READ, CONTRADICTED, "/c/global_step_1: KeyError: 'a'")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_files_and_sizes_decide(name: str) -> None:
    training, hooked, expected = CASES[name]
    run = TrainingRun(training, TrainingFacts("", 1), LevelRequest(1), hooked=hooked)
    assert [(found.name, found.outcome, found.evidence) for found in checkpoint_files(run)] == expected
