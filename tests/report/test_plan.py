"""Plans as text."""

from __future__ import annotations

from typing import Any

from ci_tasks.report.plan import describe


def plan(row: str, **more: Any) -> dict[str, Any]:
    found = {"row": row, "gpus": 0, "run_dir": f"/runs/{row}", "lacks": [], "host": "local", "secrets": []}
    return {**found, "deviations": [], **more}


def test_no_plan_is_said() -> None:
    assert describe([]) == ["no row to plan"]


def test_each_plan_is_a_line_that_can_be_pasted() -> None:
    assert describe([plan("a"), plan("b", gpus=8, run_dir="/runs/it's b")]) == [
        "ROW  GPUS  RUN BY HAND",
        "a    0     bash /runs/a/run.sh",
        "b    8     bash '/runs/it'\"'\"'s b/run.sh'",
        "",
    ]


def test_what_is_missing_and_what_differs_follow() -> None:
    differs = {"what": "code", "ci": "merge", "here": "tree", "why": "yours"}
    plans = [
        plan("a", secrets=["B", "A"], lacks=["4 GPUs (found 0)", "docker"], deviations=[differs]),
        plan("b", secrets=["A"], deviations=[differs]),
    ]
    assert describe(plans)[3:] == [
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
    plans = [plan(row, lacks=["8 GPUs"]) for row in "abcd"] + [plan("e", lacks=["2 GPUs"])]
    said = describe(plans)
    assert said[said.index("Cannot run here:") + 1 :] == [
        "  a, b and 2 more: local lacks 8 GPUs",
        "  e: local lacks 2 GPUs",
        "",
    ]
