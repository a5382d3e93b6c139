"""What the probe saw of the trainings' processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.probe.records import (
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
    from ci_tasks.features.verl.levels.summary import Summary
    from tests.features.verl.judge.conftest import Writer


def worker(rank: int, bridge: str = BRIDGE, core: str = CORE, started_at: float = 150.0) -> ProcessEvidence:
    imports = (ImportedModule("megatron.bridge", bridge), ImportedModule("megatron.core", core))
    smoke = usual(trainings(LevelRequest(0))[0], started_at)
    return replace(smoke, pid=90 + rank, env={"RANK": str(rank)}, imports=imports)


def judged(writer: Writer, *processes: ProcessEvidence) -> Summary:
    """Of a level 0 that ran between the times 100 and 199."""
    log = writer.preflight() + writer.training(trainings(writer.request)[0])
    return writer.judged(writer.request, log, evidence=RunEvidence(processes=processes))


def test_every_process_has_to_import_the_checkout(writer: Writer) -> None:
    summary = judged(writer, worker(0), worker(1))
    assert summary.result == "Pass"
    first, second = summary.criteria[0].criteria[:2]
    assert (first.evidence, first.place) == (f"2 processes from {ROOT}/src", "rank 0 (pid 90), rank 1 (pid 91)")
    assert second.evidence == f"2 processes from {CORE}"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (worker(1, bridge="/opt/site-packages/megatron/bridge/__init__.py"), "rank 1 (pid 91) of level 0: /opt/site-p"),
        (worker(1, core="/workspace/Megatron-LM/megatron/core/__init__.py"), "one Megatron-LM in every process of le"),
    ],
    ids=["Bridge", "Megatron-LM"],
)
def test_one_worker_with_another_package_makes_the_run_no_evidence(
    other: ProcessEvidence, why: str, writer: Writer
) -> None:
    summary = judged(writer, worker(0), other, worker(2))
    assert (summary.result, why in summary.sentence) == ("Blocked", True), summary.sentence


def test_a_megatron_that_is_not_the_checkouts_is_named(writer: Writer) -> None:
    shadowed = "/workspace/Megatron-LM/megatron/core/__init__.py"
    summary = judged(writer, worker(0, core=shadowed), worker(1, core=shadowed))
    assert summary.result == "Pass"
    assert "which is not the Bridge checkout's 3rdparty/Megatron-LM" in summary.criteria[0].criteria[1].evidence


def test_a_driver_with_the_images_megatron_is_named_and_no_contradiction(writer: Writer) -> None:
    """verl's wrapper puts it first for the driver alone."""
    image = "/workspace/Megatron-LM/megatron/core/__init__.py"
    driver = replace(worker(7, core=image), env={}, argv=("python3", "-m", "verl.trainer.main_ppo"))
    summary = judged(writer, worker(0), worker(1), driver)
    assert summary.result == "Pass"
    assert summary.criteria[0].criteria[1].evidence.endswith(f"; pid 97 has {image}")


def test_processes_of_the_preflight_are_none_of_a_training(writer: Writer) -> None:
    other = worker(1, bridge="/opt/site-packages/megatron/bridge/__init__.py", started_at=50.0)
    assert judged(writer, other, worker(0)).result == "Pass"


def test_nobody_who_imports_bridge_was_seen(writer: Writer) -> None:
    summary = judged(writer)
    assert (summary.result, "no process of the training was seen" in summary.sentence) == ("Not proven", True)


def test_an_exception_in_bridge_that_no_log_shows_fails(writer: Writer) -> None:
    frames = (CodeFrame(f"{ROOT}/src/megatron/bridge/peft/lora.py", 221, "transform"),)
    noted = NotedException(where="ray", chain=(LinkedException("builtins.KeyError", "'linear_qkv'", frames),))
    summary = judged(writer, replace(worker(0), exceptions=(noted,)))
    assert summary.result == "Fail"
    assert summary.sentence.endswith("KeyError: 'linear_qkv' (rank 0 (pid 90))")
