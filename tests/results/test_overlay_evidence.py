"""What the processes of a run show of an overlay."""

from __future__ import annotations

import pytest

from ci_tasks.agent.probe.evidence import ImportedModule, ProcessEvidence, RunEvidence
from ci_tasks.agent.records import Checkout, Deviation, Overlay, ProbeOverlay
from ci_tasks.records import Attempt, RunRecord
from ci_tasks.results.probe_evidence import with_overlay_uses

OVERLAY = Overlay(name="sglang", path="/me/sglang", directory=".ci-tasks-overlays/sglang/python", modules=("sglang",))
PLACE = "/runs/1/01/workspace/.ci-tasks-overlays/sglang/python"
OURS = f"{PLACE}/sglang/__init__.py"
THEIRS = "/usr/lib/python3/site-packages/sglang/__init__.py"


def _process(pid: int, *origins: str, name: str = "sglang") -> ProcessEvidence:
    imports = tuple(ImportedModule(name, origin) for origin in origins)
    return ProcessEvidence(pid=pid, argv=("python", "train.py"), imports=imports)


SHOWN = "shown: the one process that was seen to import it had it from there"
CASES = [
    ([_process(1, OURS), _process(2), _process(3, OURS)], "shown: all 2 processes that were seen to import it", ""),
    (
        [_process(1, OURS), _process(2, THEIRS)],
        "contradicted: ",
        f"pid 2 (python train.py) imported sglang from {THEIRS}",
    ),
    ([_process(1)], "not seen: ", ""),
    (None, "not seen: ", ""),
    # Another directory of the same name is not the run's.
    ([_process(1, f"/tmp{OURS}")], "contradicted: ", f"imported sglang from /tmp{OURS}"),
    ([_process(1, OURS.replace("/sglang/__", "/../sglang/__"))], "contradicted: ", "imported sglang from "),
    # Modules of the package count as it does, but for compiled ones, which the tree may lack.
    ([_process(1, OURS), _process(2, THEIRS, name="sglang.srt")], "contradicted: ", "imported sglang.srt from"),
    ([_process(1, OURS), _process(2, THEIRS.replace("__init__.py", "_c.abi3.so"), name="sglang._c")], SHOWN, ""),
    ([_process(1, OURS), _process(2, THEIRS, name="sglang_router")], SHOWN, ""),
    # What the job wrote itself is no text for a terminal.
    ([_process(1, "\x1b[2J\n/etc")], "contradicted: ", "imported sglang from \N{REPLACEMENT CHARACTER}"),
]


def _record(status: str = "passed") -> RunRecord:
    return RunRecord(
        id="1.01", label="unit", row="unit", host=None, status=status,
        checkout=Checkout(path="/me/repo", overlays=(OVERLAY,)),
        deviations=(Deviation("overlay sglang", "the installed one", "abc", "--with sglang=/me/sglang"),),
        attempts=(Attempt(id="1.01", host=None, status=status),),
    )  # fmt: skip


@pytest.mark.parametrize(("processes", "said", "reason"), CASES)
def test_shown_contradicted_and_not_seen(processes: list[ProcessEvidence] | None, said: str, reason: str) -> None:
    evidence = RunEvidence(processes=tuple(processes)) if processes is not None else None
    judged = with_overlay_uses(_record(), evidence, (ProbeOverlay(PLACE, ("sglang",), PLACE),))
    status = "blocked" if reason else "passed"
    assert (judged.status, judged.attempts[-1].status) == (status, status)
    assert judged.deviations[0].why.startswith(f"--with sglang=/me/sglang; {said}")
    assert reason in judged.reason and bool(judged.reason) == bool(reason)
    assert judged.reason.isprintable()


def test_a_run_that_another_client_planned_is_judged_by_the_end_of_the_path() -> None:
    assert with_overlay_uses(_record(), RunEvidence(processes=(_process(1, OURS),))).status == "passed"


def test_compiled_parts_that_stay_the_installed_ones_are_named() -> None:
    files = [f"sglang/_{number}.so" for number in range(7)]
    compiled = [_process(2, f"/usr/lib/{file}", name=file[:-3].replace("/", ".")) for file in files]
    evidence = RunEvidence(processes=(_process(1, OURS), *compiled))
    deviation = with_overlay_uses(_record(), evidence).deviations[-1]
    assert deviation.what == "overlay sglang: compiled parts"
    assert deviation.here == f"the installed {', '.join(files[:5])} and 2 more"
    assert deviation.why.startswith("the tree does not have them, so --with replaces its Python code alone")


def test_a_lost_run_stays_lost() -> None:
    assert with_overlay_uses(_record("lost"), RunEvidence(processes=(_process(2, THEIRS),))).status == "lost"
