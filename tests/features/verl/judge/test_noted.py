"""What the probe and its hook noted of a training's processes: how models were built, what was imported, raised, saved
and read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.agent.evidence import (
    CodeFrame,
    HookEvent,
    ImportedModule,
    LinkedException,
    NotedException,
    ProcessEvidence,
    RunEvidence,
)
from ci_tasks.features.verl.judge.criteria import READ, RESUME, WRITTEN, criteria_of
from ci_tasks.features.verl.judge.records import CONTRADICTED, NOT_SEEN, SHOWN, Summary
from ci_tasks.features.verl.judge.training_log import QuotedLine, TrainingFacts
from ci_tasks.features.verl.judge.training_run import HOOK, PROVIDES, TrainingRun
from ci_tasks.features.verl.levels.levels import Training, trainings
from tests.features.verl.judge.conftest import BRIDGE, CORE, REQUEST, ROOT, Writer
from tests.features.verl.judge.conftest import worker as usual
from tests.parts.cases import named

SMOKE = trainings(REQUEST)[0]
MODEL = {
    "provider": "GPTModelProvider", "layers": 16,
    "wrappers": ["DistributedDataParallel", "Float16Module"], "model": "GPTModel",
    "parameters": 73728, "trainable": 8192, "adapters": {"LoRALinear": 16},
}  # fmt: skip
SIZES = {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1}


def judged(writer: Writer, *processes: ProcessEvidence, silent: bool = False) -> Summary:
    """Of a level 0 that ran between the times 100 and 199; a `silent` log says nothing of how models were built."""
    log = writer.preflight() + writer.training(SMOKE, body=writer.steps(SMOKE) if silent else None)
    return writer.judged(writer.request, log, evidence=RunEvidence(processes=processes))


def events(**kinds: Any) -> tuple[HookEvent, ...]:
    """What the hook noted, by kind: a record, or several."""
    several = {kind: each if isinstance(each, list) else [each] for kind, each in kinds.items()}
    return tuple(HookEvent(150.0, HOOK, kind, json.dumps(one)) for kind, each in several.items() for one in each)


def built(**other: Any) -> ProcessEvidence:
    """A process whose hook noted a level 0 that did what it was asked, but for `other`."""
    whole: dict[str, Any] = {"model": MODEL, "sizes": SIZES}
    for kind, each in other.items():
        several = each if isinstance(each, list) else [each]
        whole[kind] = [{**whole.get(kind, {}), **one} for one in several]
    return replace(usual(SMOKE, 150.0), hook_events=events(**whole))


def test_a_silent_log_passes_on_what_the_hook_noted(writer: Writer) -> None:
    summary = judged(writer, built(), silent=True)
    assert summary.result == "Pass", summary.sentence
    places = {criterion.name: (criterion.evidence, criterion.place) for criterion in summary.criteria[0].criteria}
    lora = "8,192 of 73,728 parameters are trainable, 16 LoRALinear"
    assert places["LoRA with trainable parameters"] == (lora, "rank 0 (pid 90)")
    assert places["model wrapper"] == ("DDP", "rank 0 (pid 90)")
    assert places["non-vanilla Bridge"][0].endswith("; built by GPTModelProvider")


BUILT: list[tuple[dict[str, Any], str, str]] = [
    ({"model": {"trainable": 0}}, "Fail", "0 trainable parameters"),
    ({"model": {"trainable": 73728}}, "Fail", "every parameter is trainable beside the adapters"),
    ({"model": {"adapters": {}}}, "Fail", "no trained model has an adapter"),
    ({"model": {"adapters": {"LoRALinear": 1}}}, "Fail", "1 adapter in 16 layers"),
    ({"model": {"adapters": {"LoRALinear": 15}}, "sizes": []}, "Fail", "15 adapters in 16 layers"),
    ({"model": {"adapters": {"LoRALinear": 14}}, "sizes": {"pipeline": 0}}, "Fail", "14 adapters in 16 layers"),
    ({"model": {"wrappers": ["FullyShardedDataParallel"]}}, "Fail", "Megatron-FSDP was built, not DDP"),
    ({"model": [{}, {"trainable": 0}]}, "Not proven", "a model has 0 trainable parameters"),
    ({"sizes": {"tensor": 2}}, "Fail", "tensor 2 in the built models, not 1"),
    ({"sizes": [{}, {"pipeline": 2}]}, "Fail", "pipeline 1/2 in the built models, not 1"),
    ({"model": {"provider": ""}, "hooked": {"module": "m", "found": [PROVIDES]}}, "Fail",
     "GPTModel was built without a provider of Megatron-Bridge"),
    ({"model": {"provider": ""}, "hooked": {"module": "m", "found": []}}, "Pass", "Level 0 passed"),
]  # fmt: skip


@pytest.mark.parametrize(("other", "result", "why"), BUILT, ids=[case[2] for case in BUILT])
def test_what_the_hook_noted_otherwise_decides(other: dict[str, Any], result: str, why: str, writer: Writer) -> None:
    summary = judged(writer, built(**other), silent=True)
    assert (summary.result, why in summary.sentence) == (result, True), summary.sentence


# -- what processes imported and raised --------------------------------------------------------------------------------


def worker(rank: int, bridge: str = BRIDGE, core: str = CORE, started_at: float = 150.0) -> ProcessEvidence:
    imports = (ImportedModule("megatron.bridge", bridge), ImportedModule("megatron.core", core))
    return replace(usual(SMOKE, started_at), pid=90 + rank, env={"RANK": str(rank)}, imports=imports)


PACKAGED = "/opt/site-packages/megatron/bridge/__init__.py"
SHADOW = "/workspace/Megatron-LM/megatron/core/__init__.py"
# verl's wrapper puts the image's Megatron first for the driver alone.
DRIVER = replace(worker(7, core=SHADOW), env={}, argv=("python3", "-m", "verl.trainer.main_ppo"))
IMPORTED: dict[str, tuple[list[ProcessEvidence], str, str]] = {
    "another Bridge in one": ([worker(0), worker(1, PACKAGED), worker(2)], "Blocked",
     "rank 1 (pid 91) of level 0: /opt/s"),
    "another Megatron in one": ([worker(0), worker(1, core=SHADOW), worker(2)], "Blocked",
     "one Megatron-LM in every process"),
    "another Megatron in all": ([worker(0, core=SHADOW), worker(1, core=SHADOW)], "Pass",
     "is not the Bridge checkout's 3rd"),
    "another in the driver": ([worker(0), worker(1), DRIVER], "Pass", CORE),
    "a process of the preflight": ([worker(1, PACKAGED, started_at=50.0), worker(0)], "Pass", ""),
    "none": ([], "Not proven", "no process of the training was seen"),
}  # fmt: skip


@named(("processes", "result", "why"), IMPORTED)
def test_a_worker_with_another_package_makes_the_run_no_evidence(
    processes: list[ProcessEvidence], result: str, why: str, writer: Writer
) -> None:
    summary = judged(writer, *processes)
    named = summary.criteria[0].criteria[1].evidence if result == "Pass" else summary.sentence
    assert (summary.result, why in named) == (result, True), named


def test_an_exception_in_bridge_that_no_log_shows_fails(writer: Writer) -> None:
    frames = (CodeFrame(f"{ROOT}/src/megatron/bridge/peft/lora.py", 221, "transform"),)
    noted = NotedException(where="worker", chain=(LinkedException("builtins.KeyError", "'linear_qkv'", frames),))
    summary = judged(writer, replace(worker(0), exceptions=(noted,)))
    assert summary.result == "Fail"
    assert summary.sentence.endswith("KeyError: 'linear_qkv' (rank 0 (pid 90))")


# -- level 1's checkpoints ---------------------------------------------------------------------------------------------

RESUMES = Training("", 1, {}, steps=2, resumes=True)
FILES = {"model.json": 10, "a/0.distcp": 90}


def resumed(came_from: str = "", **kinds: Any) -> dict[str, str]:
    """The outcomes of a training that resumes; what the one before it wrote is checkpoints/p/e/global_step_1/actor."""

    def evidence(**kinds: Any) -> RunEvidence:
        return RunEvidence(processes=(ProcessEvidence(pid=9, hook_events=events(**kinds)),))

    wrote = evidence(saved={"path": "checkpoints/p/e/global_step_1/actor"})
    facts = TrainingFacts(settings={"trainer.default_local_dir": "checkpoints/p/e"})
    facts.said |= {"resumed": QuotedLine(3, f"Resuming from {came_from}", came_from)} if came_from else {}
    before = TrainingRun(RESUMES, TrainingFacts(), evidence=wrote)
    run = TrainingRun(RESUMES, facts, evidence=evidence(**kinds), before=before)
    return {one.name: one.outcome for one in criteria_of(run)}


OWN = {"path": "/w/checkpoints/p/e/global_step_2/actor", "files": FILES}
CRITIC = {"path": "/w/checkpoints/p/e/global_step_2/critic", "files": FILES}
BEFORE = {"path": "/w/checkpoints/p/e/global_step_1/actor", "files": FILES}
OTHER = {**BEFORE, "path": "/w/checkpoints/p/x/global_step_1/actor"}
SAVED: dict[str, tuple[Any, Any, tuple[str, str]]] = {
    "none": ([], [], (NOT_SEEN, NOT_SEEN)),
    "whole": (OWN, BEFORE, (SHOWN, SHOWN)),
    "the critic's alone": (CRITIC, {**BEFORE, "path": CRITIC["path"]}, (CONTRADICTED, CONTRADICTED)),
    "of another step": (BEFORE, OWN, (CONTRADICTED, CONTRADICTED)),
    "of another experiment": (OWN, OTHER, (SHOWN, CONTRADICTED)),
    "with an empty file": ({**OWN, "files": {"a.pt": 0}}, {**BEFORE, "files": {"a.pt": 0}}, (NOT_SEEN, CONTRADICTED)),
    "without a file": ({**OWN, "files": {}}, {**BEFORE, "files": {}}, (NOT_SEEN, NOT_SEEN)),
    "unreadable": (OWN, {**BEFORE, "error": "KeyError: 'a'"}, (SHOWN, CONTRADICTED)),
}


@named(("saved", "loaded", "outcomes"), SAVED)
def test_names_files_and_sizes_decide(saved: Any, loaded: Any, outcomes: tuple[str, str]) -> None:
    found = resumed(saved=saved, loaded=loaded)
    assert (found[WRITTEN], found[READ]) == outcomes


RESUMED = [
    ("/w/checkpoints/p/e/global_step_1", SHOWN),
    ("checkpoints/p/e/global_step_1", SHOWN),
    ("/w/checkpoints/p/other/global_step_1", CONTRADICTED),
    ("/w/checkpoints/p/e/global_step_10", CONTRADICTED),
    ("", NOT_SEEN),
]


@pytest.mark.parametrize(("came_from", "outcome"), RESUMED)
def test_a_resume_is_from_the_checkpoint_that_the_training_before_it_wrote(came_from: str, outcome: str) -> None:
    assert resumed(came_from)[RESUME] == outcome
