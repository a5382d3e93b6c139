"""What the probe saw of the trainings' processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.probe.evidence import (
    CodeFrame,
    ImportedModule,
    LinkedException,
    NotedException,
    ProcessEvidence,
    RunEvidence,
)
from ci_tasks.features.verl.levels.levels import LevelRequest, trainings
from tests.features.verl.judge.conftest import BRIDGE, CORE, ROOT
from tests.features.verl.judge.conftest import worker as usual

if TYPE_CHECKING:
    from ci_tasks.features.verl.judge.records import Summary
    from tests.features.verl.judge.conftest import Writer


def worker(rank: int, bridge: str = BRIDGE, core: str = CORE, started_at: float = 150.0) -> ProcessEvidence:
    imports = (ImportedModule("megatron.bridge", bridge), ImportedModule("megatron.core", core))
    smoke = usual(trainings(LevelRequest(0))[0], started_at)
    return replace(smoke, pid=90 + rank, env={"RANK": str(rank)}, imports=imports)


def judged(writer: Writer, *processes: ProcessEvidence) -> Summary:
    """Of a level 0 that ran between the times 100 and 199."""
    log = writer.preflight() + writer.training(trainings(writer.request)[0])
    return writer.judged(writer.request, log, evidence=RunEvidence(processes=processes))


PACKAGED = "/opt/site-packages/megatron/bridge/__init__.py"
SHADOW = "/workspace/Megatron-LM/megatron/core/__init__.py"
# verl's wrapper puts the image's Megatron first for the driver alone.
DRIVER = replace(worker(7, core=SHADOW), env={}, argv=("python3", "-m", "verl.trainer.main_ppo"))
CASES: dict[str, tuple[list[ProcessEvidence], str, str]] = {
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


@pytest.mark.parametrize(("processes", "result", "why"), CASES.values(), ids=CASES)
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
