"""Level 1's checkpoints by their files and names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ci_tasks.agent.probe.evidence import HookEvent, ProcessEvidence, RunEvidence
from ci_tasks.features.verl.judge.criteria import READ, RESUME, WRITTEN, criteria_of
from ci_tasks.features.verl.judge.records import CONTRADICTED, NOT_SEEN, SHOWN
from ci_tasks.features.verl.judge.training_log import QuotedLine, TrainingFacts
from ci_tasks.features.verl.judge.training_run import HOOK, TrainingRun
from ci_tasks.features.verl.levels.levels import Training

RESUMES = Training("", 1, {}, steps=2, resumes=True)
FILES = {"model.json": 10, "a/0.distcp": 90}
SAVED = "checkpoints/p/e/global_step_1/actor"


def run(saved: dict[str, Any] | None = None, loaded: dict[str, Any] | None = None, came_from: str = "") -> TrainingRun:
    """A training that resumes; what the one before it wrote is SAVED."""
    kinds = {"saved": saved, "loaded": loaded}
    events = tuple(HookEvent(1.0, HOOK, kind, json.dumps(fields)) for kind, fields in kinds.items() if fields)
    evidence = RunEvidence(processes=(ProcessEvidence(pid=9, hook_events=events),))
    facts = TrainingFacts(settings={"trainer.default_local_dir": "checkpoints/p/e"})
    if came_from:
        facts.said["resumed"] = QuotedLine(3, f"Resuming from {came_from}", came_from)
    wrote = HookEvent(1.0, HOOK, "saved", json.dumps({"path": SAVED}))
    earlier = RunEvidence(processes=(ProcessEvidence(pid=8, hook_events=(wrote,)),))
    before = TrainingRun(RESUMES, TrainingFacts(), evidence=earlier)
    return TrainingRun(RESUMES, facts, evidence=evidence, before=before)


OWN = {"path": "/w/checkpoints/p/e/global_step_2/actor", "files": FILES}
CRITIC = {"path": "/w/checkpoints/p/e/global_step_2/critic", "files": FILES}
BEFORE = {"path": "/w/checkpoints/p/e/global_step_1/actor", "files": FILES}
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, tuple[str, str]]] = {
    "none": (None, None, (NOT_SEEN, NOT_SEEN)),
    "whole": (OWN, BEFORE, (SHOWN, SHOWN)),
    "the critic's alone": (CRITIC, {**BEFORE, "path": CRITIC["path"]}, (CONTRADICTED, CONTRADICTED)),
    "of another step": (BEFORE, OWN, (CONTRADICTED, CONTRADICTED)),
    "of another experiment": (OWN, {**BEFORE, "path": "/w/checkpoints/p/x/global_step_1/actor"}, (SHOWN, CONTRADICTED)),
    "with an empty file": ({**OWN, "files": {"a.pt": 0}}, {**BEFORE, "files": {"a.pt": 0}}, (NOT_SEEN, CONTRADICTED)),
    "without a file": ({**OWN, "files": {}}, {**BEFORE, "files": {}}, (NOT_SEEN, NOT_SEEN)),
    "unreadable": (OWN, {**BEFORE, "error": "KeyError: 'a'"}, (SHOWN, CONTRADICTED)),
}


@pytest.mark.parametrize(("saved", "loaded", "outcomes"), CASES.values(), ids=CASES)
def test_names_files_and_sizes_decide(saved: Any, loaded: Any, outcomes: tuple[str, str]) -> None:
    found = {one.name: one.outcome for one in criteria_of(run(saved, loaded)) if one.name in (WRITTEN, READ)}
    assert found == dict(zip((WRITTEN, READ), outcomes, strict=True))


@pytest.mark.parametrize(
    ("came_from", "outcome"),
    [
        ("/w/checkpoints/p/e/global_step_1", SHOWN),
        ("checkpoints/p/e/global_step_1", SHOWN),
        ("/w/checkpoints/p/other/global_step_1", CONTRADICTED),
        ("/w/checkpoints/p/e/global_step_10", CONTRADICTED),
        ("", NOT_SEEN),
    ],
)
def test_a_resume_is_from_the_checkpoint_that_the_training_before_it_wrote(came_from: str, outcome: str) -> None:
    found = {one.name: one.outcome for one in criteria_of(run(came_from=came_from))}
    assert found[RESUME] == outcome
