"""Which labels a pull request starts: GitHub's filters of paths and branches, PR labels, and `if:`."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.triggers import LabelStart, label_starts, why_not_started

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
FILTERS = [
    ("pull_request", "main", ["a.py"], ""),
    ("{push: {branches: [main]}, schedule: []}", "main", ["a.py"], "starts on push, schedule only"),
    ("{pull_request: {paths: ['src/**', '!src/docs/**']}}", "main", ["src/a/b.py"], ""),
    (
        "{pull_request: {paths: ['src/**', '!src/docs/**']}}",
        "main",
        ["src/docs/a.md", "README.md"],
        "paths src/docs/a.md, README.md: none matches src/**, !src/docs/**",
    ),
    ("{pull_request: {paths: ['src/**', '!src/docs/**', 'src/docs/x.md']}}", "main", ["src/docs/x.md"], ""),
    ("{pull_request: {paths: '*'}}", "main", ["a/b.py"], "paths a/b.py: none matches *"),
    ("{pull_request: {paths: '**.py'}}", "main", ["a/b.py"], ""),
    ("{pull_request: {paths: '**/docs/**'}}", "main", ["docs/a.md"], ""),
    ("{pull_request: {paths: '*.jsx?'}}", "main", ["a.js"], ""),
    ("{pull_request: {paths: 'v[12].[0-9]+'}}", "main", ["v1.10"], ""),
    ("{pull_request: {paths: 'a.(py)'}}", "main", ["a.(py)"], ""),
    ("{pull_request: {paths: ['**/*t*/**/*.py']}}", "main", ["a/tests/b/c.py"], ""),
    ("{pull_request: {paths: ['**/b']}}", "main", ["ab"], "paths ab: none matches **/b"),
    ("{pull_request: {paths: [a++, '?x', '\\*']}}", "main", ["aa+"], ""),
    ("{pull_request: {paths: ['\\*']}}", "main", ["*"], ""),
    # Not one way after the other: these would be 10^15.
    (
        f"{{pull_request: {{paths: '{'**a' * 20}b'}}}}",
        "main",
        ["a" * 99],
        f"paths {'a' * 99}: none matches {'**a' * 20}b",
    ),
    ("{pull_request: {paths-ignore: ['docs/**']}}", "main", ["docs/a.md"], "paths docs/a.md: ignored by docs/**"),
    ("{pull_request: {paths-ignore: ['docs/**']}}", "main", ["docs/a.md", "a.py"], ""),
    ("{pull_request: {branches: ['releases/**', 'main']}}", "main", ["a.py"], ""),
    ("{pull_request: {branches: ['releases/**']}}", "main", ["a.py"], "branches main: none matches releases/**"),
    ("{pull_request: {branches-ignore: [main]}}", "main", ["a.py"], "branches main: ignored by main"),
    ("{pull_request_target: {paths: 'x'}}", "main", ["a.py"], "paths a.py: none matches x"),
]


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
