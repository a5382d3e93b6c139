"""Jobs of workflows of the checkout that another one calls: `uses: ./.github/workflows/FILE`."""

from __future__ import annotations

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Row, Workflow
from ci_tasks.workflow.reader import read_with_called
from ci_tasks.workflow.rows import environment, job_of, row_resolver, rows
from ci_tasks.workflow.secrets import mark
from ci_tasks.workflow.suite import describe

CALLER = """
on: pull_request
env: {OF: the-caller}
jobs:
  policy: {runs-on: ubuntu-latest, outputs: {cadence: x}, steps: [{run: x}]}
  stage:
    needs: policy
    if: contains(github.event.pull_request.labels.*.name, 'run-stage')
    strategy: {matrix: {size: [2, 8]}}
    uses: ./.github/workflows/run.yml
    with: {runner: "${{ matrix.size }}-gpu-h100", count: "${{ matrix.size }}", flag: true}
    secrets: {TOKEN: "${{ secrets.HF_TOKEN }}"}
  all: {uses: ./.github/workflows/run.yml, secrets: inherit, with: {runner: cpu}}
"""
CALLED = """
on:
  workflow_call:
    inputs:
      runner: {type: string, required: true}
      count: {type: number, default: 1}
      flag: {type: boolean}
      suite: {type: string, default: all}
    secrets: {TOKEN: {required: false}}
env: {OF: the-called}
jobs:
  plan: {runs-on: ubuntu-latest, steps: [{run: x}]}
  run:
    needs: plan
    runs-on: ["${{ inputs.runner }}"]
    strategy: {matrix: {part: [a, b]}}
    env: {ARGS: "${{ inputs.count }} ${{ inputs.flag }} ${{ inputs.suite }} ${{ matrix.part }} ${{ matrix.size }}"}
    steps: [{run: "x ${{ secrets.TOKEN }} ${{ secrets.HF_TOKEN }} ${{ github.job }}"}]
"""
EVENT = EventContext(secrets=("HF_TOKEN",))


def read(text: str = CALLER, files: dict[str, str] | None = None) -> Workflow:
    return read_with_called(text, "ci.yml", ({".github/workflows/run.yml": CALLED} if files is None else files).get)


def rows_of(workflow: Workflow, label: str) -> list[Row]:
    return rows(workflow, job_of(workflow, label), EVENT, describe)


def test_a_call_is_the_jobs_of_the_called_workflow_named_as_github_names_them() -> None:
    workflow = read()
    assert [job.id for job in workflow.labelled] == ["policy", "stage / plan", "stage / run", "all / plan", "all / run"]
    assert job_of(workflow, "stage/run").id == "stage / run"
    assert workflow.jobs["stage / run"].needs == ("stage / plan",)


def test_rows_are_those_of_the_callers_matrix_by_the_jobs_own() -> None:
    found = rows_of(read(), "stage / run")
    assert [row.row for row in found] == [f"stage / run[{size}-{part}]" for size in (2, 8) for part in "ab"]
    assert [row.gpus for row in found] == [2, 2, 8, 8]
    assert [row.env["ARGS"] for row in found] == [f"{n} true all {part} " for n in (2, 8) for part in "ab"]
    assert {row.trigger for row in found} == {"run-stage"} and {row.env["OF"] for row in found} == {"the-called"}
    assert [(row.index, row.total) for row in found] == [(0, 2), (1, 2)] * 2
    (first, _) = rows_of(read(), "all/run")
    assert (first.env["ARGS"], first.gpus) == ("1 false all a ", 0), "inputs have their defaults and types"


@pytest.mark.parametrize(("label", "token", "hf_token"), [("stage/run", True, False), ("all/run", False, True)])
def test_a_called_job_has_the_secrets_that_its_caller_passes(label: str, token: bool, hf_token: bool) -> None:
    workflow = read()
    row = rows_of(workflow, label)[0]
    values = row_resolver(workflow, job_of(workflow, label), row, EVENT).contexts["secrets"]
    assert (values.get("TOKEN") == mark("HF_TOKEN"), values.get("HF_TOKEN") == mark("HF_TOKEN")) == (token, hf_token)
    assert {"TOKEN", "HF_TOKEN"} <= {*workflow.secrets}


def test_a_called_job_sees_its_own_name_and_the_jobs_beside_it() -> None:
    workflow = read()
    row = rows_of(workflow, "stage/run")[0]
    seen = row_resolver(workflow, job_of(workflow, "stage/run"), row, EVENT).contexts
    assert seen["github"]["job"] == "run" and [*seen["needs"]] == ["plan"]
    assert environment(workflow, job_of(workflow, "stage/run"), row, EVENT)["OF"] == "the-called"


def test_a_matrix_of_the_caller_that_is_not_known_is_one_row_that_says_so() -> None:
    text = CALLER.replace("[2, 8]", '"${{ fromJSON(needs.policy.outputs.cadence) }}"')
    (row,) = rows_of(read(text), "stage/run")
    assert row.dynamic == "${{ fromJSON(needs.policy.outputs.cadence) }}"


def chain(levels: int) -> dict[str, str]:
    """Workflows that call each other, the last of which has a job."""
    call = "on: workflow_call\njobs:\n  c: {{uses: ./.github/workflows/{}.yml}}\n"
    files = {f".github/workflows/{level}.yml": call.format(level + 1) for level in range(1, levels)}
    last = "on: workflow_call\njobs:\n  last: {runs-on: cpu, steps: [{run: x}]}\n"
    return {**files, f".github/workflows/{levels}.yml": last}


def test_four_levels_are_read_and_a_fifth_is_an_error() -> None:
    text = "on: push\njobs:\n  top: {uses: ./.github/workflows/1.yml}\n"
    assert [job.id for job in read(text, chain(4)).labelled] == ["top / c / c / c / last"]
    assert [row.row for row in rows_of(read(text, chain(4)), "top/c/c/c/last")] == ["top / c / c / c / last"]
    with pytest.raises(WorkflowError, match="the 5th workflow in a row; GitHub allows 4"):
        read(text, chain(5))


def test_a_workflow_of_another_repository_is_read_if_it_is_given_and_its_own_calls_stay_there() -> None:
    call = "on: workflow_call\njobs:\n  inner: {uses: ./.github/workflows/b.yml}\n"
    here = {".github/workflows/b.yml": "no workflow", "a/action.yml": ACTION}
    there = {"o/r/.github/workflows/a.yml@v1": call, "o/r/.github/workflows/b.yml@v1": STEPS}
    text = "on: push\njobs:\n  top: {uses: o/r/.github/workflows/a.yml@v1}\n"
    workflow = read(text, {**here, **there})
    (job,) = workflow.labelled
    assert job.id == "top / inner / j"
    assert workflow.file_of(job).path == "o/r/.github/workflows/b.yml@v1"
    assert job.steps[0].action and job.steps[0].action.file == "a/action.yml", "a runner has the caller's checkout"
    assert [job.calls for job in read(text, here).jobs.values()] == [False]


STEPS = "on: workflow_call\njobs:\n  j: {runs-on: x, steps: [{uses: ./a}]}\n"
ACTION = "runs: {using: composite, steps: [{run: x, shell: bash}]}\n"


def test_a_workflow_that_calls_itself_is_an_error() -> None:
    files = {".github/workflows/a.yml": "on: workflow_call\njobs:\n  a: {uses: ./.github/workflows/a.yml}\n"}
    with pytest.raises(WorkflowError, match="GitHub allows 4"):
        read("on: push\njobs:\n  a: {uses: ./.github/workflows/a.yml}\n", files)


def test_a_called_workflow_with_an_error_names_its_own_file() -> None:
    files = {".github/workflows/run.yml": "on: workflow_call\njobs:\n  a: {runs-on: x, stepz: []}\n"}
    with pytest.raises(WorkflowError, match=r"\.github/workflows/run\.yml:3"):
        read(files=files)


def test_jobs_that_make_or_remove_cis_machines_are_no_labels() -> None:
    text = "on: push\njobs:\n  setup: {runs-on: x, steps: [{uses: volcengine/vemlp-github-runner@v1}]}\n"
    workflow = read(text + "  test: {runs-on: x, needs: setup, steps: [{run: x}]}\n")
    assert [job.id for job in workflow.labelled] == ["test"] and "setup" in workflow.jobs
