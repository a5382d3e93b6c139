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

WHOLE = SavedFiles("checkpoint", "/c", 1, 0, {"model.json": 10, "a/0.distcp": 90})
CASES = [
    (HookedTraining(), []),
    (HookedTraining(saved=(WHOLE, WHOLE)), [(WRITTEN, SHOWN, "2 files, 100 bytes")]),
    (
        HookedTraining(saved=(SavedFiles("checkpoint", "/c", files={"model.json": 0}),)),
        [(WRITTEN, NOT_SEEN, "/c/model.json is empty")],
    ),
    (HookedTraining(saved=(SavedFiles("adapter", "/c"),)), [(WRITTEN, NOT_SEEN, "/c has no file")]),
    (
        HookedTraining(loaded=(LoadedCheckpoint("/c", 0, {"model.json": 0}),)),
        [(READ, CONTRADICTED, "/c/model.json is empty")],
    ),
    (
        HookedTraining(saved=(WHOLE,), loaded=(LoadedCheckpoint("/c", error="KeyError: 'a'"),)),
        [(WRITTEN, SHOWN, "2 files, 100 bytes"), (READ, CONTRADICTED, "/c: KeyError: 'a'")],
    ),
]


@pytest.mark.parametrize(
    ("hooked", "expected"), CASES, ids=["none", "whole", "empty", "no file", "empty read", "unreadable"]
)
def test_files_and_sizes_decide(hooked: HookedTraining, expected: list[tuple[str, str, str]]) -> None:
    run = TrainingRun(Training("", 1, {}), TrainingFacts("", 1), LevelRequest(1), hooked=hooked)
    assert [(found.name, found.outcome, found.evidence) for found in checkpoint_files(run)] == expected
