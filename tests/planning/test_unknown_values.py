"""What only GitHub knows reaches nothing that runs: it is refused by name, with the option that gives it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ci_tasks.agent.records import Checkout, Plan
from ci_tasks.config import HostSpec
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.planner import RunLocation, make_plan
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext, UnknownValueError
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.suite import describe
from tests.parts.cases import cases

CASES = cases("planning/data/unknown-values.yaml")

PLACE = RunLocation("id-1", "/run", Checkout("/src", "c0ffee", "7ree", ()), ("/py", "3.10"), "/e", "")
HEAD = "on: pull_request\njobs:\n"


def plan(body: str, event: EventContext = EventContext(), head: str = HEAD) -> Plan:
    """The plan of the job `j`, of whose body the lines are given without their indentation."""
    parsed = read(f"{head}  j:\n    runs-on: cpu\n" + "".join(f"    {line}\n" for line in body.splitlines()), "ci.yml")
    job = parsed.jobs["j"]
    (row,) = rows.rows(parsed, job, event, describe)
    event = replace(event, workspace="/run/workspace")
    return make_plan(parsed, job, row, HostSpec("box"), event, (), PLACE).plan


@pytest.mark.parametrize("body", CASES["refused"])
def test_an_unknown_value_is_refused_wherever_it_would_reach_what_runs(body: str) -> None:
    with pytest.raises(UnknownValueError) as caught:
        plan(body)
    assert "vars.MODEL_DIR, which only GitHub knows" in caught.value.message
    assert "--var MODEL_DIR=VALUE" in caught.value.hint
    assert caught.value.exit_code == 2 and "vars.MODEL_DIR" in caught.value.text
    given = GivenValues(vars={"MODEL_DIR": "1"}, sources={"vars.MODEL_DIR": "--var"})
    if "checkout@v4, with" not in body:  # a known ref is refused too, for what it says
        planned = plan(body, EventContext(given=given))
        assert [(one.here, one.why) for one in planned.deviations if one.what == "vars.MODEL_DIR"] == [("1", "--var")]


@pytest.mark.parametrize(
    ("reads", "hint", "given"),
    [
        ("vars.A", "--var A=", GivenValues(vars={"A": "v"})),
        ("needs.build.outputs.image", "--output build.image=", GivenValues(outputs={"build": {"image": "v"}})),
        ("inputs.model", "--input model=", GivenValues(inputs={"model": "v"})),
        ("github.event.inputs.model", "--input model=", GivenValues(inputs={"model": "v"})),
        ("github.event.pull_request.title", "--github-event FILE", GivenValues(event={"pull_request": {"title": "v"}})),
        ("github.event.sender.login", "--github-event FILE", GivenValues(event={"sender": {"login": "v"}})),
        ("github.head_ref", "--github-event FILE", GivenValues(event={"pull_request": {"head": {"ref": "v"}}})),
        ("github.event.number", "--github-event FILE", GivenValues(event={"pull_request": {"number": "v"}})),
        ("github.event.pull_request.number", "--github-event FILE", GivenValues(event={"number": "v"})),
    ],
)
def test_each_source_can_be_given(reads: str, hint: str, given: GivenValues) -> None:
    head = "on: {workflow_dispatch: {inputs: {model: {type: string}}}}\njobs:\n  build:\n    runs-on: cpu\n"
    head += "    outputs: {image: '${{ steps.a.outputs.b }}'}\n    steps: [{run: x}]\n"
    body = f"needs: build\nsteps:\n- run: rm -rf ${{{{ {reads} }}}}/cache"
    with pytest.raises(UnknownValueError) as caught:
        plan(body, head=head)
    assert hint in caught.value.hint
    assert "rm -rf v/cache" in plan(body, EventContext(given=given), head=head).script


def test_a_step_that_never_runs_may_say_what_nobody_knows() -> None:
    planned = plan("steps:\n- {run: 'rm -rf ${{ vars.X }}/a', if: github.event_name == 'push'}\n- run: echo done")
    assert "rm -rf" not in planned.script and "echo done" in planned.script


def test_a_secret_that_nobody_gave_is_empty_in_a_variable_and_refused_in_a_script() -> None:
    planned = plan("env: {WANDB: '${{ secrets.WANDB }}'}\nsteps: [{run: x, env: {HF: '${{ secrets.HF }}'}}]")
    assert planned.env == {"WANDB": ""}
    assert [item.ci for item in planned.deviations if item.what == "secrets"] == ["WANDB, HF"]
    with pytest.raises(UnknownValueError, match=r"secrets\.DIR, which is not in your environment") as caught:
        plan("steps: [{run: 'rm -rf ${{ secrets.DIR }}/cache'}]")
    assert "environment variable DIR" in caught.value.hint


MODES = """\
env: {MODE: '${{ secrets.MODE }}'}
steps:
- {name: same, run: x, if: "env.MODE == 'Fast'"}
- {name: other, run: x, if: "secrets.MODE != 'fast'"}
- {name: begins, run: x, if: "startsWith(format('x{0}', env.MODE), 'xfa')"}
- {name: among, run: x, if: "contains(fromJSON('[\\"slow\\", \\"fast\\"]'), env.MODE)"}
- {name: number, run: x, if: "secrets.MODE > 9"}
- {name: set, run: x, if: "env.MODE != '' && env.MODE != null"}"""


@pytest.mark.parametrize(("value", "steps"), CASES["comparisons"])
def test_a_comparison_is_one_of_a_secrets_value_which_stays_out_of_the_plan(value: str, steps: list[str]) -> None:
    event = EventContext(secrets=("MODE",), read_secret={"MODE": value}.get)
    planned = plan(MODES, event)
    assert re.findall(r"begin (\w+) 1 ", planned.script) == steps
    assert "<secret MODE>" in repr(planned.env)


def test_a_comparison_with_a_secret_that_nobody_has_is_refused_by_name() -> None:
    """Such as where its name counts as set. Whether it is set is known."""
    event = EventContext(secrets=("MODE",))
    with pytest.raises(UnknownValueError, match=r"secrets\.MODE, which is not in your environment"):
        plan("env: {MODE: '${{ secrets.MODE }}'}\nsteps:\n- {run: x, if: \"env.MODE == 'fast'\"}", event)
    assert "echo x\n" in plan("steps:\n- {run: echo x, if: \"secrets.MODE != ''\"}", event).script


def test_a_workflow_of_pull_requests_has_no_inputs() -> None:
    planned = plan("env: {A: '${{ inputs.a }}', B: '${{ inputs.b || 1 }}'}\nsteps: [{run: x}]")
    assert planned.env == {"A": "", "B": "1"}
    with pytest.raises(UnknownValueError, match=r"inputs\.dir"):
        plan("steps: [{run: 'rm -rf ${{ inputs.dir }}/cache'}]")


@pytest.mark.parametrize(("text", "value"), [("false", "b"), ("true", "a")])
def test_a_given_input_has_the_type_that_the_workflow_declares(text: str, value: str) -> None:
    head = "on: {workflow_call: {inputs: {flag: {type: boolean}}}}\njobs:\n"
    body = "steps: [{run: \"echo ${{ inputs.flag && 'a' || 'b' }}\"}]"
    event = EventContext(given=GivenValues(inputs={"flag": text}))
    assert f"echo {value}\n" in plan(body, event, head).script


def test_a_job_whose_if_only_github_can_answer_runs_since_it_was_asked_for() -> None:
    planned = plan("if: vars.ENABLED == 'true'\nsteps: [{run: x}]")
    (named,) = (item for item in planned.deviations if item.what == "if")
    assert named.ci == "only GitHub knows if it runs: vars.ENABLED == 'true'"


def test_what_is_assumed_of_the_pull_request_is_named() -> None:
    planned = plan("steps: [{run: 'echo x', if: '!github.event.pull_request.draft'}]")
    (named,) = (item for item in planned.deviations if item.what == "github.event.pull_request.draft")
    assert (named.ci, named.here) == ("GitHub's value", "false")


def test_a_given_payload_is_named_and_its_parts_are_used() -> None:
    body = "steps: [{run: 'echo ${{ github.ref }} ${{ github.event.pull_request.base.ref }} ${{ github.base_ref }}'}]"
    event = {"number": 7, "pull_request": {"base": {"ref": "dev"}}}
    given = GivenValues(event=event, sources={"github.event": "--github-event e.json"})
    planned = plan(body, EventContext(given=given))
    assert "echo refs/pull/7/merge dev dev\n" in planned.script
    assert [item.why for item in planned.deviations if item.what == "github.event"] == ["--github-event e.json"]
    assert "pull request" not in [item.what for item in planned.deviations]
