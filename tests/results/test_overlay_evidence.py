"""What the processes of a run show of an overlay."""

from __future__ import annotations

import pytest

from ci_tasks.agent.probe.records import ImportedModule, ProcessEvidence, RunEvidence
from ci_tasks.agent.records import Checkout, Deviation, Overlay
from ci_tasks.records import Attempt, RunRecord
from ci_tasks.results.overlay_evidence import with_overlay_uses

OVERLAY = Overlay(name="sglang", path="/me/sglang", directory=".ci-tasks-overlays/sglang/python", modules=("sglang",))
OURS = "/runs/1/01/workspace/.ci-tasks-overlays/sglang/python/sglang/__init__.py"
PROCESS = "--with sglang: pid 2 (python train.py)"
THEIRS = "/usr/lib/python3/site-packages/sglang/__init__.py"


def _process(pid: int, *origins: str) -> ProcessEvidence:
    imports = tuple(ImportedModule("sglang", origin) for origin in origins)
    return ProcessEvidence(pid=pid, argv=("python", "train.py"), imports=imports)


CASES = [
    ([_process(1, OURS), _process(2), _process(3, OURS)], "passed", "shown: all 2 processes that imported it", ""),
    (
        [_process(1, OURS), _process(2, THEIRS)],
        "blocked",
        "contradicted: ",
        f"pid 2 (python train.py) imported sglang from {THEIRS}",
    ),
    ([_process(1)], "passed", "not seen: ", ""),
    (None, "passed", "not seen: ", ""),
]


@pytest.mark.parametrize(("processes", "status", "said", "reason"), CASES)
def test_shown_contradicted_and_not_seen(
    processes: list[ProcessEvidence] | None, status: str, said: str, reason: str
) -> None:
    record = RunRecord(
        id="1.01",
        label="unit",
        row="unit",
        host=None,
        status="passed",
        checkout=Checkout(path="/me/repo", overlays=(OVERLAY,)),
        deviations=(Deviation("overlay sglang", "the installed one", "abc", "--with sglang=/me/sglang"),),
        attempts=(Attempt(id="1.01", host=None, status="passed"),),
    )
    judged = with_overlay_uses(record, RunEvidence(processes=tuple(processes)) if processes is not None else None)
    assert (judged.status, judged.attempts[-1].status) == (status, status)
    assert judged.deviations[0].why.startswith(f"--with sglang=/me/sglang; {said}")
    assert reason in judged.reason and bool(judged.reason) == bool(reason)


def test_a_lost_run_stays_lost() -> None:
    checkout = Checkout(path="/me/repo", overlays=(OVERLAY,))
    record = RunRecord(id="1.01", label="unit", row="unit", host=None, status="lost", checkout=checkout)
    assert with_overlay_uses(record, RunEvidence(processes=(_process(2, THEIRS),))).status == "lost"
