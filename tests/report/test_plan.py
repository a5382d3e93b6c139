"""Plans as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ci_tasks.agent.records import Checkout, Deviation
from ci_tasks.records import PlanEntry
from ci_tasks.report.plan import describe

PLAN = PlanEntry(
    id="b.01", label="l", job="j", row="", host="local", test=None, args="", gpus=0, image=None, runtime="none",
    env={}, secrets=(), workspace="/w", timeout_minutes=1, stall_minutes=1, deviations=(), container=None,
    checkout=Checkout("/c", "1", "2"), script="",
)  # fmt: skip


def plan(row: str, run_dir: str = "", missing: tuple[str, ...] = (), **more: Any) -> PlanEntry:
    return replace(PLAN, row=row, run_dir=run_dir or f"/runs/{row}", lacks=missing, **more)


def test_each_plan_is_a_line_that_can_be_pasted() -> None:
    assert describe([plan("a", run_dir="/the runs/a"), plan("b", gpus=8, run_dir="/the runs/it's b")]) == [
        "cd '/the runs'",
        "",
        "ROW  GPUS  RUN BY HAND",
        "a    0     bash a/run.sh",
        "b    8     bash 'it'\"'\"'s b/run.sh'",
        "",
    ]


def test_what_is_missing_and_what_differs_follow() -> None:
    differs = Deviation("code", "merge", "tree", "yours")
    plans = [
        plan("a", secrets=("B", "A"), missing=("4 GPUs (found 0)", "docker"), deviations=(differs,)),
        plan("b", secrets=("A",), deviations=(differs,)),
    ]
    assert describe(plans)[5:] == [
        "",
        "Secrets, from the environment: A, B",
        "",
        "Cannot run here:",
        "  a: local lacks 4 GPUs (found 0); docker",
        "",
        "Different from CI (CI → here; why):",
        "  code:  merge → tree; yours",
    ]


def test_what_many_rows_lack_is_said_once() -> None:
    plans = [plan(row, missing=("8 GPUs",)) for row in "abcd"] + [plan("e", missing=("2 GPUs",))]
    lines = describe(plans)
    assert lines[lines.index("Cannot run here:") + 1 :] == [
        "  a, b and 2 more: local lacks 8 GPUs",
        "  e: local lacks 2 GPUs",
        "",
    ]
