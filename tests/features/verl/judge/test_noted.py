"""What the probe's hook noted of a training is evidence of how its models were built."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent.probe.evidence import HookEvent, RunEvidence
from ci_tasks.features.verl.judge.training_run import HOOK, PROVIDES
from ci_tasks.features.verl.levels.levels import trainings
from tests.features.verl.judge.conftest import worker

if TYPE_CHECKING:
    from ci_tasks.features.verl.judge.records import Summary
    from tests.features.verl.judge.conftest import Writer

MODEL = {
    "provider": "GPTModelProvider", "layers": 16,
    "wrappers": ["DistributedDataParallel", "Float16Module"], "model": "GPTModel",
    "parameters": 73728, "trainable": 8192, "adapters": {"LoRALinear": 16},
}  # fmt: skip
SIZES = {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1}


def noted(**other: Any) -> dict[str, list[dict[str, Any]]]:
    """What the hook notes of a level 0 that did what it was asked, but for `other`."""
    usual: dict[str, dict[str, Any]] = {"model": MODEL, "sizes": SIZES}
    changes = {kind: other.get(kind, {}) for kind in {**usual, **other}}
    return {
        kind: [{**usual.get(kind, {}), **change} for change in (several if isinstance(several, list) else [several])]
        for kind, several in changes.items()
    }


def judged(writer: Writer, records: dict[str, list[dict[str, Any]]]) -> Summary:
    """Of a training whose log says nothing of how its models were built."""
    events = tuple(
        HookEvent(150.0, HOOK, kind, json.dumps(fields)) for kind, each in records.items() for fields in each
    )
    (smoke,) = trainings(writer.request)
    process = replace(worker(smoke, 150.0), hook_events=events)
    log = writer.preflight() + writer.training(smoke, body=writer.steps(smoke))
    return writer.judged(writer.request, log, evidence=RunEvidence(processes=(process,)))


def test_a_silent_log_passes_on_what_the_hook_noted(writer: Writer) -> None:
    summary = judged(writer, noted())
    assert summary.result == "Pass", summary.sentence
    places = {criterion.name: (criterion.evidence, criterion.place) for criterion in summary.criteria[0].criteria}
    assert places["LoRA with trainable parameters"] == (
        "8,192 of 73,728 parameters are trainable, 16 LoRALinear",
        "rank 0 (pid 90)",
    )
    assert places["model wrapper"] == ("DDP", "rank 0 (pid 90)")
    assert places["non-vanilla Bridge"][0].endswith("; built by GPTModelProvider")


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"model": {"trainable": 0}}, "Fail", "0 trainable parameters"),
    ({"model": {"trainable": 73728}}, "Fail", "every parameter is trainable beside the adapters"),
    ({"model": {"adapters": {}}}, "Fail", "no trained model has an adapter"),
    ({"model": {"adapters": {"LoRALinear": 1}}}, "Fail", "1 adapter in 16 layers"),
    ({"model": {"wrappers": ["FullyShardedDataParallel"]}}, "Fail", "Megatron-FSDP was built, not DDP"),
    ({"model": [{}, {"trainable": 0}]}, "Not proven", "a model has 0 trainable parameters"),
    ({"sizes": {"tensor": 2}}, "Fail", "tensor 2 in the built models, not 1"),
    ({"sizes": [{}, {"pipeline": 2}]}, "Fail", "pipeline 1/2 in the built models, not 1"),
    ({"model": {"provider": ""}, "hooked": {"module": "m", "found": [PROVIDES]}}, "Fail",
     "GPTModel was built without a provider of Megatron-Bridge"),
    ({"model": {"provider": ""}, "hooked": {"module": "m", "missing": [PROVIDES]}}, "Pass", "Level 0 passed"),
]  # fmt: skip


@pytest.mark.parametrize(("other", "result", "why"), CASES, ids=[case[2] for case in CASES])
def test_what_the_hook_noted_otherwise_decides(other: dict[str, Any], result: str, why: str, writer: Writer) -> None:
    summary = judged(writer, noted(**other))
    assert (summary.result, why in summary.sentence) == (result, True), summary.sentence
