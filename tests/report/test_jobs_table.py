"""The tables of `jobs` as text, to the character."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.report.jobs_table import jobs
from ci_tasks.workflow.model import Row


def test_jobs_begin_with_a_line_for_each_label() -> None:
    row = Row("ppo", "e2e-test-ppo", "run-ci-ppo", "qwen3", None, "", 8, "a/b:c", {}, "self-hosted", None)
    dynamic = Row("changed", "j", None, "changed", None, "", None, None, {}, "github-hosted", None, dynamic="${{ x }}")
    assert jobs([row, replace(row, row="moe", gpus=2), dynamic]) == [
        "LABEL    ROWS  GPUS  PR LABEL    IMAGE",
        "ppo      2     2-8   run-ci-ppo  a/b:c",
        "changed  ?     ?     always      -",
        "",
        "LABEL    ROW                    GPUS",
        "ppo      qwen3                  8",
        "ppo      moe                    2",
        "changed  (decided by ${{ x }})  ?",
    ]


def test_what_differs_within_a_label_has_a_column_of_its_own() -> None:
    row = Row("ppo", "e2e-test-ppo", "run-ci-ppo", "a", None, "", 8, "x:1", {}, "self-hosted", None)
    assert jobs([row, replace(row, row="b", image="x:2")]) == [
        "LABEL  ROWS  GPUS  PR LABEL    IMAGE",
        "ppo    2     8     run-ci-ppo  2 different",
        "",
        "LABEL  ROW  GPUS  IMAGE",
        "ppo    a    8     x:1",
        "ppo    b    8     x:2",
    ]


def test_a_count_that_is_not_known_is_no_number_and_a_runner_without_equivalent_says_why() -> None:
    row = Row("a", "a", None, "a1", None, "", 8, None, {}, "self-hosted", None)
    rocm = replace(row, label="rocm", row="r", gpus=None, refused="runs on mi300")
    assert jobs([row, replace(row, row="a2", gpus=None), rocm]) == [
        "LABEL  ROWS  GPUS  PR LABEL  IMAGE",
        "a      2     8, ?  always    -",
        "rocm   1     -     always    -",
        "",
        "LABEL  ROW  GPUS",
        "a      a1   8",
        "a      a2   ?",
        "rocm   r    -",
        "",
        "Cannot run here:",
        "rocm  runs on mi300",
    ]
