"""Megatron-Bridge's CI: GPUs from runner labels, local actions followed, overrides that ship."""

from __future__ import annotations

import pytest

from ci_tasks.config import suite_overrides
from ci_tasks.errors import WorkflowError
from ci_tasks.features.bridge.suite import SUITE, WORKFLOW
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.steps import overridden, plan_steps
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.reader import read_with_called

TEXT = """\
on: push
jobs:
  pre-flight:
    uses: other/repo/.github/workflows/preflight.yml@1
  configure: {runs-on: x, outputs: {merge_sha: x}, steps: [{run: x}]}
  cicd-unit-tests-core:
    needs: [pre-flight, configure]
    runs-on: ${{ needs.pre-flight.outputs.runner_prefix }}
    strategy:
      matrix:
        shard-id: [0, 1]
    steps:
      - name: Checkout
        uses: actions/checkout@v6
        with: {ref: "${{ needs.configure.outputs.merge_sha }}"}
      - name: Generate GitHub App token
        id: app-token
        uses: actions/create-github-app-token@v3
      - name: main
        uses: ./.github/actions/test-template
        with:
          script: Launch
          shard: ${{ matrix.shard-id }}
          github-token: ${{ steps.app-token.outputs.token }}
"""
ACTION = """\
inputs:
  script: {required: true}
  shard: {}
  timeout: {default: "10"}
  github-token: {}
runs:
  using: composite
  steps:
    - name: Checkout repository
      uses: actions/checkout@v6
      with: {path: "${{ github.workspace }}/sub"}
    - name: Start container
      shell: bash
      run: docker run --workdir /opt/Megatron-Bridge x ${{ inputs.shard }} ${{ inputs.timeout }}
    - name: Run main script
      shell: bash
      run: bash ${{ inputs.script }}.sh '${{ inputs.github-token }}'
    - name: Check result
      shell: bash
      run: echo ${{ steps.create.outputs.x }}
    - name: Container shutdown
      if: always()
      shell: bash
      run: docker rm -f x
"""
EVENT = EventContext(repository="o/r", given=GivenValues(outputs={"pre-flight": {"runner_prefix": "nv-gpu-x2"}}))
JOB = "cicd-unit-tests-core"


def bridge(action: str | None = ACTION) -> Workflow:
    files = {".github/actions/test-template/action.yml": action}
    return read_with_called(TEXT, WORKFLOW, files.get)


def planned(workflow: Workflow, overrides: str = SUITE.overrides) -> list[tuple[str, str, bool | str]]:
    job = workflow.jobs[JOB]
    row = rows.rows(workflow, job, EVENT, SUITE.describe)[1]
    resolve = rows.row_resolver(workflow, job, row, EVENT)
    steps = plan_steps(job, resolve, suite_overrides("bridge", overrides)).steps
    return [(step.name, step.text, step.on_failure) for step in steps]


def test_a_row_has_the_gpus_of_its_runners_label() -> None:
    workflow = bridge()
    assert [row.gpus for row in rows.rows(workflow, workflow.jobs[JOB], EVENT, SUITE.describe)] == [2, 2]
    nobody = rows.rows(workflow, workflow.jobs[JOB], EventContext(repository="o/r"), SUITE.describe)
    assert [row.gpus for row in nobody] == [None, None]


def test_what_only_an_overridden_step_reads_is_not_needed() -> None:
    job, overrides = (workflow := bridge()).jobs[JOB], suite_overrides("bridge", SUITE.overrides)
    for each, needed in ((job, {"configure": ["needs.configure.outputs.merge_sha"]}), (overridden(job, overrides), {})):
        assert rows.needed_outputs(workflow, each, EVENT) == needed


def test_the_steps_of_a_local_action_run_with_their_inputs_over_your_tree() -> None:
    mounted = "--volume /workspace:/opt/Megatron-Bridge --workdir /opt/Megatron-Bridge"
    workspace = EVENT.workspace
    assert planned(bridge()) == [
        ("Start container", f"docker run {mounted} x 1 10".replace("/workspace", workspace), False),
        ("Run main script", "bash Launch.sh ''", False),
        ("Container shutdown", "docker rm -f x", True),
    ]


@pytest.mark.parametrize("action", [None, "runs: {using: node20, main: x.js}"], ids=["missing", "no composite one"])
def test_an_action_that_cannot_be_followed_is_refused_by_name(action: str | None) -> None:
    with pytest.raises(WorkflowError, match="uses an action that has no equivalent here") as refused:
        planned(bridge(action))
    assert "uses: ./.github/actions/test-template" in refused.value.message


def test_an_error_inside_of_an_action_names_its_file_and_line() -> None:
    with pytest.raises(WorkflowError) as refused:
        planned(bridge(ACTION.replace("'${{ inputs.github-token", "'${{ vars.TOKEN")))
    assert refused.value.message.startswith(".github/actions/test-template/action.yml:17: ")


def test_a_weekly_row_is_its_script() -> None:
    script = {"script": "run_megatron_qwen3", "timeout": 60, "runner": "gpu-x8"}
    assert SUITE.describe(script).test == ".github/workflows/verl_ci/run_megatron_qwen3.sh"
    assert SUITE.describe({**script, "script": "L0_Launch_utils"}).test is None
