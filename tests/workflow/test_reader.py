"""A workflow's text becomes records with lines; what GitHub would refuse is an error that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.model import Container, Job, Step, UnsupportedKey, Workflow, WorkflowInput
from ci_tasks.workflow.reader import REFUSED, WITHOUT_EFFECT, keys, read, render_template
from tests.parts.cases import cases

CASES = cases("workflow/data/reader.yaml")

FULL = (Path(__file__).parent / "data/every-key.yml").read_text()


def test_every_key_reaches_its_record() -> None:
    workflow = read(FULL, "w.yml")
    assert (workflow.path, workflow.name, workflow.place) == ("w.yml", "PR", "w.yml")
    assert workflow.env == {"GLOBAL": "${{ secrets.HF_TOKEN }}"}
    assert workflow.secrets == ("GITHUB_TOKEN", "HF_TOKEN", "WANDB_API_KEY")
    assert workflow.jobs["e2e-test-ckpt"] == Job(
        id="e2e-test-ckpt",
        line=17,
        name="Checkpoints",
        condition="contains(github.event.pull_request.labels.*.name, 'run-ci-ckpt')",
        needs=("detect",),
        runs_on=["self-hosted", "gpu"],
        env={"A": 1, "B": True},
        matrix={"info": [{"test_file": "test_a.py", "num_gpus": 8}]},
        container=Container("slimerl/slime:latest", "--gpus all", {"C": 2}, ("/a:/b",), line=32),
        refused=(UnsupportedKey("services", "service containers are not supported", 38),),
        steps=(
            Step("actions/checkout@v4", 41, uses="actions/checkout@v4", with_={"fetch-depth": 0}),
            Step(
                name="Run", line=43, run="pytest", shell="sh", env={"TOKEN": "${{ secrets['WANDB_API_KEY'] }}"},
                working_directory="inner", condition="always()", continue_on_error=True, timeout_minutes=5,
            ),
        ),
        shell="bash",
        working_directory="sub",
        timeout_minutes=90,
        fail_fast=False,
        unused=(UnsupportedKey("strategy.fail-fast", "only --fail-fast cancels other rows", 28),),
    )  # fmt: skip
    assert workflow.jobs["detect"].outputs == {"matrix": "${{ steps.d.outputs.matrix }}"}


def minimal(job: str = "", top: str = "", steps: str = "- run: x") -> str:
    return f"on: push\n{top}jobs:\n  a:\n    runs-on: gpu\n{job}    steps:\n      {steps}\n"


def job_of(text: str) -> Job:
    return read(text, "w.yml").jobs["a"]


KEYS_OF_A_JOB: list[tuple[str, str, object]] = [
    ("", "needs", ()),
    ("    needs: b\n", "needs", ("b",)),
    ("    needs: [b, c]\n", "needs", ("b", "c")),
    ("    needs: []\n", "needs", ()),
    ("", "container", None),
    # A string is the image; the empty one is none, so that an expression can switch it off.
    ("    container: img:1\n", "container", Container("img:1", line=5)),
    ("    container: ''\n", "container", None),
    ("    container: {image: 'img:1'}\n", "container", Container("img:1", line=5)),
    ("    container: {image: '${{ x }}', options: --ipc}\n", "container", Container("${{ x }}", "--ipc", line=5)),
    *((text, "matrix", matrix) for text, matrix in CASES["a matrix is a mapping or an expression"]),
]


@pytest.mark.parametrize(("text", "key", "value"), KEYS_OF_A_JOB)
def test_a_key_of_a_job_may_be_written_in_several_ways(text: str, key: str, value: object) -> None:
    others = "  b: {uses: ./x.yml}\n  c: {uses: ./x.yml}\n"
    assert getattr(job_of(minimal(text) + others), key) == value


STEP_NAMES = [
    ("- {name: N, id: i, run: x}", "N"),
    ("- {id: i, run: x}", "i"),
    ("- {uses: actions/checkout@v4}", "actions/checkout@v4"),
    ("- {run: x}", "step 1"),
    ("- {name: 5, run: x}", "5"),
]


@pytest.mark.parametrize(("step", "name"), STEP_NAMES)
def test_a_step_is_called_by_its_name_action_id_or_number(step: str, name: str) -> None:
    assert job_of(minimal(steps=step)).steps[0].name == name


CALL = "workflow_call: {inputs: {image: {default: 'x:1'}, gpus: {type: number, default: 8}, name: {type: string}}}"


ABOOL = WorkflowInput("boolean", False)
DECLARED = {"image": WorkflowInput("string", "x:1"), "gpus": WorkflowInput("number", 8), "name": WorkflowInput()}


ON: list[tuple[str, dict[str, WorkflowInput], bool, tuple[str, ...]]] = [
    (f"{{{CALL}}}", DECLARED, True, ("workflow_call",)),
    ("{workflow_dispatch: {inputs: {a: {type: boolean, default: false}}}}", {"a": ABOOL}, True, ("workflow_dispatch",)),
    # A pull request or a push starts it without inputs.
    (f"{{pull_request: , {CALL}}}", DECLARED, False, ("pull_request", "workflow_call")),
    (f"{{push: {{branches: [main]}}, {CALL}}}", DECLARED, False, ("push", "workflow_call")),
    ("push", {}, False, ("push",)),
    ("[push, workflow_call]", {}, False, ("push", "workflow_call")),
    ("{workflow_call: , workflow_dispatch: {inputs: }}", {}, False, ("workflow_call", "workflow_dispatch")),
    ("{schedule: [], push: }", {}, False, ("schedule", "push")),
]


@pytest.mark.parametrize(("on", "inputs", "needs_inputs", "events"), ON)
def test_what_starts_it_and_its_inputs_with_a_type_and_a_default(
    on: str, inputs: dict[str, WorkflowInput], needs_inputs: bool, events: tuple[str, ...]
) -> None:
    parsed = read(minimal().replace("push", on, 1), "w.yml")
    assert (parsed.inputs, parsed.needs_inputs, parsed.events) == (inputs, needs_inputs, events)


def test_what_came_from_a_template_says_so_in_its_place() -> None:
    assert read(minimal(), "w.yml.j2", rendered=True).place == "w.yml.j2 (rendered)"
    with pytest.raises(WorkflowError, match=r"^w\.yml\.j2 \(rendered\):1: "):
        read("- x", "w.yml.j2", rendered=True)


# -- templates ---------------------------------------------------------------------------------------------------------


SLIME = """\
<% set jobs = {'ckpt': {'label': 'run-ci-ckpt', 'image': 'x:1'}, 'cpu': {}} %>
<% for name, config in jobs.items() %>
  << name >>: ${{ matrix.x }} << config.image if config.image else 'default' >> {{ kept }}
<% endfor %>"""


def test_angled_delimiters_leave_githubs_own_alone() -> None:
    assert render_template(SLIME, "w.j2").split("\n") == [
        "",
        "",
        "  ckpt: ${{ matrix.x }} x:1 {{ kept }}",
        "",
        "  cpu: ${{ matrix.x }} default {{ kept }}",
        "",
    ]


@pytest.mark.parametrize(("template", "text"), CASES["a template is rendered as its generator does"])
def test_a_template_is_rendered_as_its_generator_does(template: str, text: str) -> None:
    assert render_template(template, "w.j2") == text


@pytest.mark.parametrize(("template", "line", "message", "text"), CASES["a broken template names its line and text"])
def test_a_broken_template_names_its_line_and_text(template: str, line: int, message: str, text: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        render_template(template, "w.j2")
    assert str(caught.value).startswith(f"w.j2:{line}: the template ")
    assert message in str(caught.value)
    assert text in caught.value.text


# -- no key of GitHub's workflow syntax is silently dropped: each is read, refused by name, or named as a difference ---


LISTED = Path(__file__).parent / "data/github-workflow-keys.txt"
KEYS = keys()
GITHUB = [line for line in LISTED.read_text().splitlines() if not line.startswith("#")]


def test_every_key_of_githubs_schema_is_in_the_table() -> None:
    known = {".".join(path.split(".")[:length]) for path in KEYS for length in range(1, path.count(".") + 2)}
    assert [path for path in GITHUB if not any(f"{path}.".startswith(f"{each}.") for each in known)] == []


def test_the_table_has_no_key_that_github_does_not_have() -> None:
    newer = {"on.image_version", "on.pull_request_comment"}
    assert {path for path in KEYS if path not in GITHUB} <= newer


def of_treatment(treatment: str) -> list[str]:
    return [path for path, spec in KEYS.items() if spec[0] == treatment]


def workflow_with(path: str) -> Workflow:
    """A workflow with a job `a` and a value at the path."""
    tree: dict[str, Any] = {"on": {"pull_request": {}}, "jobs": {"a": {"runs-on": "x", "steps": [{"run": "x"}]}}}
    at: Any = tree
    *parents, last = path.replace("<id>", "a").split(".")
    for part in parents:
        if part == "[]":
            at = at[0]
            continue
        if not isinstance(at.get(part), (dict, list)):
            at[part] = {"image": "i"} if part == "container" else {}
        at = at[part]
    at[last] = "./x.yml" if last == "uses" else {"key": "value"}
    if last == "uses":
        del tree["jobs"]["a"]["steps"]
    return read(json.dumps(tree), "w.yml")


@pytest.mark.parametrize("path", of_treatment(REFUSED))
def test_a_refused_key_is_kept_for_whoever_runs_the_job(path: str) -> None:
    """With its reason, and without an error for the other jobs of the workflow."""
    job = workflow_with(path).jobs["a"]
    refused = [*job.refused, *(key for step in job.steps for key in step.refused)]
    assert [(key.name, key.why) for key in refused] == [
        (path.rpartition("jobs.<id>.")[2].removeprefix("steps.[]."), KEYS[path][1])
    ]


@pytest.mark.parametrize("path", of_treatment(WITHOUT_EFFECT))
def test_a_key_without_effect_is_kept_with_its_reason(path: str) -> None:
    parsed = workflow_with(path)
    unused = [*parsed.unused, *parsed.jobs["a"].unused]
    assert [(key.name, key.why) for key in unused] == [(path.removeprefix("jobs.<id>."), KEYS[path][1])]


UNKNOWN_KEYS = [
    ("on: pull_request\nrun_name: x\n", "the workflow has no key 'run_name'; did you mean 'run-name'?"),
    ("on: pull_requests\n", "on has no event 'pull_requests'; did you mean 'pull_request'?"),
    ("on: [psuh]\n", "on has no event 'psuh'; did you mean 'push'?"),
    ("on: {pull_request: {path: [a]}}\n", "on.pull_request has no key 'path'; did you mean 'paths'?"),
    ("on: {workflow_call: {inputs: {a: {defualt: 1}}}}\n", "on.workflow_call.inputs.<id> has no key 'defualt'"),
]


JOBS = "jobs: {a: {runs-on: x, steps: [{run: x}]}}\n"


@pytest.mark.parametrize(("text", "message"), [*CASES["errors"], *((text + JOBS, key) for text, key in UNKNOWN_KEYS)])
def test_what_github_refuses_names_file_line_job_step_and_text(text: str, message: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        read(text, "w.yml")
    assert message in str(caught.value)
