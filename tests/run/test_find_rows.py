"""Rows that another job's outputs decide: that job is run here only for a person who asks for it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.cli.commands.labels import JobsOptions, PlanOptions, jobs, plan
from ci_tasks.errors import WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.run.checkout_source import event_context, open_source, outline
from ci_tasks.run.find_rows import find_rows, list_jobs
from ci_tasks.workflow.context import UnknownValueError
from tests.parts.git import git

WORKFLOW = """
on: pull_request
jobs:
  detect:
    runs-on: x
    outputs: {matrix: '${{ steps.find.outputs.matrix }}'}
    steps:
      - id: find
        run: |
          touch MARK
          echo 'matrix={"n": [1, 2]}' >> "$GITHUB_OUTPUT"
  tests:
    runs-on: x
    needs: detect
    strategy: {matrix: '${{ fromJson(needs.detect.outputs.matrix) }}'}
    steps: [{run: 'echo ${{ matrix.n }}'}]
  vars:
    runs-on: x
    strategy: {matrix: '${{ fromJson(vars.MATRIX) }}'}
    steps: [{run: x}]
"""


@pytest.fixture
def checkout(commit: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkout whose detection leaves the file `mark` beside it."""
    return commit(WORKFLOW.replace("MARK", shlex.quote(str(tmp_path / "mark"))))


def test_jobs_and_plan_execute_nothing_of_the_checkout(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs(JobsOptions(repo=str(checkout), json=True)) == 0
    assert jobs(JobsOptions(label="tests", repo=str(checkout))) == 0
    assert "--run-needs runs that job here" in capsys.readouterr().out
    with pytest.raises(UnknownValueError) as caught:
        plan(PlanOptions(label="tests", repo=str(checkout)))
    assert "the rows are not known" in caught.value.message
    assert caught.value.hint.startswith("--run-needs runs detect here, or give --output detect.matrix=VALUE")
    assert not (checkout.parent / "mark").exists()


def test_who_asks_for_it_has_the_job_run(checkout: Path) -> None:
    source = open_source(str(checkout))
    source.path.joinpath("untracked").touch()
    rows = list_jobs(source, "tests", "HEAD", run_needs=True)
    assert [row.row for row in rows] == ["tests[1]", "tests[2]"]
    assert (checkout.parent / "mark").exists()


def test_a_given_output_decides_the_rows_and_runs_nothing(checkout: Path) -> None:
    given = GivenValues(outputs={"detect": {"matrix": json.dumps({"n": [3]})}})
    source = open_source(str(checkout), given=given)
    found = find_rows(source, "tests", event_context(source), None, run_needs=False)
    assert [row.row for row in found.rows] == ["tests[3]"]
    assert not (checkout.parent / "mark").exists()


def test_a_matrix_that_only_github_knows_is_no_row_to_run(checkout: Path) -> None:
    source = open_source(str(checkout))
    with pytest.raises(UnknownValueError, match="the rows are not known") as caught:
        find_rows(source, "vars", event_context(source), None)
    assert caught.value.hint.startswith("give --var MATRIX=VALUE")


def test_a_job_with_an_error_hides_no_others(commit: Callable[[str], Path]) -> None:
    steps = "runs-on: ubuntu-latest, steps: [{run: x}]"
    bad = f"  bad: {{{steps}, strategy: {{matrix: {{a: \"${{{{ fromJSON('[1') }}}}\"}}}}}}\n"
    source = open_source(str(commit(f"on: pull_request\njobs:\n{bad}  good: {{{steps}}}\n")))
    listed = {row.label: row.refused for row in list_jobs(source)}
    assert "fromJSON: not JSON" in (listed["bad"] or "") and listed["good"] is None
    assert outline(source) == {"bad": [], "good": ["good"]}
    with pytest.raises(WorkflowError, match="fromJSON: not JSON"):
        list_jobs(source, "bad")


CALLED = """
on:
  workflow_call:
    inputs: {size: {type: string, required: true}}
    outputs: {rows: {value: "${{ jobs.second.outputs.rows }}"}, odd: {value: "${{ jobs.gone.outputs.x }}"}}
jobs:
  first:
    runs-on: x
    outputs: {size: "${{ steps.a.outputs.size }}"}
    steps: [{id: a, run: 'echo "size=${{ inputs.size }}" >> "$GITHUB_OUTPUT"'}]
  second:
    runs-on: x
    needs: first
    outputs: {rows: "${{ steps.a.outputs.rows }}"}
    steps: [{id: a, run: 'echo "rows=[${{ needs.first.outputs.size }}, 9]" >> "$GITHUB_OUTPUT"'}]
"""
USES_OUTPUTS = """
on: pull_request
jobs:
  policy:
    runs-on: x
    outputs: {size: "${{ steps.p.outputs.size }}", base: "${{ steps.p.outputs.base }}"}
    steps:
      - {uses: actions/checkout@v4}
      - id: p
        run: |
          echo size=7 >> "$GITHUB_OUTPUT"; echo ran >> MARK
          echo "base=${{ github.event.pull_request.base.sha }}" >> "$GITHUB_OUTPUT"
  rows: {needs: policy, uses: ./.github/workflows/called.yml, with: {size: "${{ needs.policy.outputs.size }}"}}
  tests:
    needs: [policy, rows]
    runs-on: ubuntu-latest
    strategy: {matrix: {n: "${{ fromJSON(needs.rows.outputs.rows) }}"}}
    env: {BASE: "${{ needs.policy.outputs.base }}"}
    steps: [{run: "echo ${{ needs.policy.outputs.size }}"}]
"""


def test_outputs_of_jobs_and_of_called_workflows_reach_rows_variables_and_steps(
    commit: Callable[[str], Path], tmp_path: Path
) -> None:
    path = commit(USES_OUTPUTS.replace("MARK", shlex.quote(str(tmp_path / "mark"))))
    (path / ".github/workflows/called.yml").write_text(CALLED)
    source = open_source(str(path), workflow=".github/workflows/ci.yml")
    found = find_rows(source, "tests", event_context(source), "HEAD")
    assert [row.row for row in found.rows] == ["tests[7]", "tests[9]"]
    assert (tmp_path / "mark").read_text() == "ran\n", "a job that two others need runs once"
    base = git(path, "rev-parse", "HEAD")
    assert found.context.outputs["policy"] == {"size": "7", "base": base}
    assert {row.env["BASE"] for row in found.rows} == {base}
    with pytest.raises(UnknownValueError, match="the rows are not known") as caught:
        find_rows(source, "tests", event_context(source), "HEAD", run_needs=False)
    assert caught.value.hint.startswith("--run-needs runs rows here, or give --output rows.rows=VALUE")


def test_a_matrix_of_a_caller_that_waits_for_a_job_is_an_error_that_names_it(commit: Callable[[str], Path]) -> None:
    caller = "strategy: {matrix: {n: '${{ fromJSON(needs.policy.outputs.rows) }}'}}, needs: policy"
    text = "on: pull_request\njobs:\n  policy: {runs-on: x, outputs: {rows: x}, steps: [{run: docker ps}]}\n"
    path = commit(f"{text}  called: {{{caller}, uses: ./.github/workflows/b.yml}}\n")
    (path / ".github/workflows/b.yml").write_text("on: workflow_call\njobs:\n  a: {runs-on: x, steps: [{run: x}]}\n")
    source = open_source(str(path), workflow=".github/workflows/ci.yml")
    for run_needs in (False, True):
        with pytest.raises(WorkflowError, match="rows"):
            find_rows(source, "called/a", event_context(source), "HEAD", run_needs=run_needs)


@pytest.mark.parametrize("name", ["../../secret.yml", ".github/workflows/../../../../secret.yml", "link.yml"])
def test_a_workflow_outside_of_the_checkout_is_not_read(
    commit: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    path = commit(
        "on: push\njobs:\n  away: {uses: ./NAME}\n  own: {runs-on: x, steps: [{run: x}]}\n".replace("NAME", name)
    )
    for place in (path.parent, path.parent.parent):
        (place / "secret.yml").write_text("token: s3cret\n")
    (path / "link.yml").symlink_to(path.parent / "secret.yml")
    assert list(outline(open_source(str(path), workflow=".github/workflows/ci.yml"))) == ["away", "own"]
