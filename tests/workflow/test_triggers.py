"""Which labels a pull request starts: GitHub's filters of paths and branches, PR labels, and `if:`."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.triggers import LabelStart, label_starts, why_not_started
from tests.parts.cases import cases

CASES = cases("workflow/data/triggers.yaml")

JOBS = """
jobs:
  always: {runs-on: x, steps: [run: a]}
  e2e-test-ckpt:
    runs-on: x
    if: contains(github.event.pull_request.labels.*.name, 'run-ci-ckpt')
    steps: [run: a]
  never: {runs-on: x, if: "github.event_name == 'push'", steps: [run: a]}
  unknown: {runs-on: x, if: github.event.pull_request.merged_by.login == 'a', steps: [run: a]}
"""

# `on:`, the base, the changed files, why it does not start. The patterns are those of GitHub's cheat sheet.
FILTERS = CASES["which pull requests start a workflow"]


@pytest.mark.parametrize(("on", "base", "changed", "why"), FILTERS)
def test_why_a_workflow_does_not_start(on: str, base: str, changed: list[str], why: str) -> None:
    assert why_not_started(read(f"on: {on}\n{JOBS}", "w.yml"), base, changed) == why


def test_a_job_starts_by_its_label_and_its_if() -> None:
    found = list(label_starts(read(f"on: pull_request\n{JOBS}", "w.yml"), EventContext(), ["a.py"]))
    assert found == [
        LabelStart("w.yml", "always", "yes", None, ""),
        LabelStart("w.yml", "ckpt", "with label", "run-ci-ckpt", "with the PR label run-ci-ckpt"),
        LabelStart("w.yml", "never", "no", None, "its if is false, github.event_name == 'push'"),
        LabelStart(
            "w.yml", "unknown", "?", None,
            "only GitHub knows: github.event.pull_request.merged_by.login == 'a'",
        ),
    ]  # fmt: skip


def test_a_workflow_that_does_not_start_starts_no_job() -> None:
    found = label_starts(read(f"on: push\n{JOBS}", "w.yml"), EventContext(), ["a.py"])
    assert {(each.starts, each.why) for each in found} == {("no", "starts on push only")}
