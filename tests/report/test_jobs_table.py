"""The tables of `jobs` as text, to the character."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.report.jobs_table import jobs
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

LABEL    ROW                    GPUS  IMAGE
ppo      qwen3                  8     a/b:c
ppo      moe                    2     x:2
changed  (decided by ${{ x }})  ?     -
a        a1                     8     -
a        a2                     ?     -
rocm     r                      -     -

Cannot run here:
rocm  runs on mi300"""
    assert "\n".join(shown) == expected
