"""The tables of `jobs` and `plan` as text, to the character; `runs` and its flakes are among the golden screens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ci_tasks.agent.records import Checkout, Deviation
from ci_tasks.records import PlanEntry
from ci_tasks.report.jobs import jobs
from ci_tasks.report.lists import plans
from ci_tasks.workflow.model import Row


def test_jobs_begin_with_a_line_for_each_label_and_what_differs_within_one_has_a_column() -> None:
    """A count that is not known is no number, and a runner without an equivalent says why."""
    ppo = Row("ppo", "e2e-test-ppo", "run-ci-ppo", "qwen3", None, "", 8, "a/b:c", {}, "self-hosted", None)
    dynamic = Row("changed", "j", None, "changed", None, "", None, None, {}, "github-hosted", None, dynamic="${{ x }}")
    rocm = Row("rocm", "rocm", None, "r", None, "", None, None, {}, "self-hosted", None, refused="runs on mi300")
    unknown = replace(rocm, label="a", row="a2", refused="")
    known, moe = replace(unknown, row="a1", gpus=8), replace(ppo, row="moe", gpus=2, image="x:2")
    shown = jobs([ppo, moe, dynamic, known, unknown, rocm])
    expected = """\
LABEL    ROWS  GPUS  PR LABEL    IMAGE
ppo      2     2-8   run-ci-ppo  2 different
changed  ?     ?     always      -
a        2     8, ?  always      -
rocm     1     -     always      -

ROW                    GPUS  LABEL    IMAGE
qwen3                  8     ppo      a/b:c
moe                    2     ppo      x:2
(decided by ${{ x }})  ?     changed  -
a1                     8     a        -
a2                     ?     a        -
r                      -     rocm     -

Cannot run here:
rocm  runs on mi300"""
    assert "\n".join(shown) == expected


PLAN = PlanEntry(
    id="b.01", label="l", job="j", row="", host="local", test=None, args="", gpus=0, image=None, runtime="none",
    env={}, secrets=(), workspace="/w", timeout_minutes=1, stall_minutes=1, deviations=(), container=None,
    checkout=Checkout("/c", "1", "2"), script="",
)  # fmt: skip


def plan(row: str, run_dir: str = "", missing: tuple[str, ...] = (), **more: Any) -> PlanEntry:
    return replace(PLAN, row=row, run_dir=run_dir or f"/runs/{row}", lacks=missing, **more)


def test_each_plan_is_a_line_that_can_be_pasted() -> None:
    assert plans([plan("a", run_dir="/the runs/a"), plan("b", gpus=8, run_dir="/the runs/it's b")]) == [
        "cd '/the runs'",
        "",
        "ROW  GPUS  RUN BY HAND",
        "a    0     bash a/run.sh",
        "b    8     bash 'it'\"'\"'s b/run.sh'",
        "",
    ]


def test_what_is_missing_and_what_differs_follow() -> None:
    differs = Deviation("code", "merge", "tree", "yours")
    entries = [
        plan("a", secrets=("B", "A"), missing=("4 GPUs (found 0)", "docker"), deviations=(differs,)),
        plan("b", secrets=("A",), deviations=(differs,)),
    ]
    assert plans(entries)[5:] == [
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
    entries = [plan(row, missing=("8 GPUs",)) for row in "abcd"] + [plan("e", missing=("2 GPUs",))]
    lines = plans(entries)
    assert lines[lines.index("Cannot run here:") + 1 :] == [
        "  a, b and 2 more: local lacks 8 GPUs",
        "  e: local lacks 2 GPUs",
        "",
    ]
