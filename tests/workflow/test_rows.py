"""The rows that CI would run, evaluated: names, environment, image, runner, trigger, time limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from ci_tasks.errors import UnknownName, WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import JobRow, Row, Workflow
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.rows import LabelStart, expand, job_of, label_starts, select, why_not_started
from tests.parts.cases import cases
from tests.parts.entries import describe

CASES = cases("workflow/data/rows.yaml")

LABELS = "github.event.pull_request.labels.*.name"


def workflow(job: str = "", *, top: str = "", others: str = "", steps: str = "- run: x") -> Workflow:
    """A workflow with the job `a`; `job` and `others` are YAML, indented as they stand in the file."""
    runner = "" if "runs-on" in job else "    runs-on: gpu\n"
    return read(f"on: pull_request\n{top}jobs:\n  a:\n{runner}{job}    steps:\n      {steps}\n{others}", "w.yml")


def listed(parsed: Workflow, event: EventContext = EventContext(), job: str = "a") -> list[Row]:
    return rows.rows(parsed, parsed.jobs[job], event, describe)


def only(parsed: Workflow, event: EventContext = EventContext()) -> Row:
    (row,) = listed(parsed, event)
    return row


def info(*entries: str) -> str:
    return "    strategy:\n      matrix:\n        info:\n" + "".join(f"          - {entry}\n" for entry in entries)


def test_a_row_has_everything_that_ci_says_of_it() -> None:
    parsed = workflow(
        f"    if: contains({LABELS}, 'run-ci-a')\n    timeout-minutes: 90\n"
        + "    env: {N: '${{ matrix.info.num_gpus }}'}\n"
        + info("{test_file: test_ckpt.py, test_args: --async-save, num_gpus: 8}", "{test_file: test_ppo.py}"),
        steps="- run: docker run --rm img:1 bash",
    )
    assert listed(parsed)[0] == Row(
        label="a", job="a", trigger="run-ci-a", row="ckpt[async-save]", test="tests/test_ckpt.py",
        args="--async-save", gpus=8, image="img:1", env={"N": "8"}, runner="self-hosted", timeout_minutes=90.0,
        matrix={"info": {"test_file": "test_ckpt.py", "test_args": "--async-save", "num_gpus": 8}}, index=0, total=2,
    )  # fmt: skip


@pytest.mark.parametrize(("entries", "names"), CASES["names"])
def test_row_names_are_readable_and_unique(entries: list[str], names: list[str]) -> None:
    parsed = workflow(info(*entries))
    assert [row.row for row in listed(parsed)] == names
    assert rows.names(parsed, parsed.jobs["a"], EventContext(), describe) == names


NEEDED = f"  b:\n    if: contains({LABELS}, 'run-ci-b')\n    uses: ./x.yml\n  c: {{uses: ./x.yml, needs: b}}\n"


@pytest.mark.parametrize(("job", "trigger"), CASES["triggers"])
def test_the_trigger_is_the_label_that_starts_the_job(job: str, trigger: str | None) -> None:
    assert only(workflow(job, others=NEEDED)).trigger == trigger


@pytest.mark.parametrize(("runs_on", "runner"), CASES["machines"])
def test_labels_say_whose_machine_it_is(runs_on: str, runner: str) -> None:
    parsed = workflow(f"    runs-on: {runs_on}\n    needs: b\n", others="  b: {uses: ./x.yml}\n")
    assert only(parsed).runner == runner


TIME_LIMITS = [
    ("0.5", 0.5),
    ("${{ matrix.info.minutes }}", 30.0),
    ("${{ matrix.info.nothing || 60 }}", 60.0),
    ("${{ fromJson(inputs.minutes) }}", None),
    ("", None),
]


@pytest.mark.parametrize(("minutes", "limit"), TIME_LIMITS)
def test_the_time_limit_may_be_an_expression(minutes: str, limit: float | None) -> None:
    parsed = workflow(f"    timeout-minutes: {minutes}\n" + info("{minutes: 30}"))
    assert only(parsed).timeout_minutes == limit


def test_the_jobs_environment_outweighs_the_workflows_and_neither_sees_the_other() -> None:
    parsed = workflow(
        "    env:\n      B: job-${{ env.A }}\n      C: ${{ matrix.info.n || '0' }}\n      D: 1.0\n      E:\n"
        + info("{n: 2}"),
        top="env: {A: top, B: top}\n",
    )
    assert only(parsed).env == {"A": "top", "B": "job-", "C": "2", "D": "1", "E": ""}


@pytest.mark.parametrize(("job", "steps", "image"), CASES["images"])
def test_the_image_is_the_containers_or_the_first_docker_runs(job: str, steps: str, image: str | None) -> None:
    assert only(workflow(job + info("{tag: t}"), steps=steps)).image == image


@pytest.mark.parametrize(("job", "script", "count"), CASES["gpus"])
@pytest.mark.parametrize("given", [None, 5, 0])
def test_a_row_has_the_gpus_that_the_workflow_says_and_else_those_that_a_person_gives(
    job: str, script: str, count: int | str | None, given: int | None
) -> None:
    steps = f"- run: |\n          {script}\n      - {{run: gpu_lock_exec.py --count 7 -- x, if: false}}"
    row = only(workflow(job, steps=steps, others="  b: {uses: ./x.yml}\n"), EventContext(given=GivenValues(gpus=given)))
    of_runner, said = isinstance(count, str), count if count is None else int(str(count).split()[0])
    takes_given = (said is None and not row.refused) or (of_runner and given == 0)
    assert (row.gpus, row.gpus_given) == (given if takes_given else said, takes_given and given is not None)
    assert row.gpus_of_runner == of_runner


def test_secrets_are_shown_by_name_and_never_by_value() -> None:
    parsed = workflow(
        "    env: {T: 'x-${{ secrets.TOKEN }}', U: '${{ secrets.UNSET }}'}\n",
        steps="- run: docker run ${{ secrets.REGISTRY }}/img:1",
    )
    row = only(parsed, EventContext(secrets=("TOKEN", "REGISTRY")))
    assert row.env == {"T": f"x-{secrets.mark('TOKEN')}", "U": ""}
    assert secrets.shown(row.env["T"]) == "x-<secret TOKEN>"
    assert row.image == "<secret REGISTRY>/img:1"


# The matrix of one job from the output of another.
DETECT = "  detect: {uses: ./x.yml}\n"
DYNAMIC = "${{ fromJson(needs.detect.outputs.m) }}"
WAITING = [
    (f"matrix: {DYNAMIC}", '{"info": [{"n": 1}]}'),
    (f"matrix: {{info: '{DYNAMIC}'}}", '[{"n": 1}]'),
    (f"matrix: {{os: [x], include: '{DYNAMIC}'}}", '[{"n": 1}]'),
    (f"matrix: {{include: ['{DYNAMIC}']}}", '{"n": 1}'),
]


@pytest.mark.parametrize(("matrix", "output"), WAITING)
def test_a_matrix_is_dynamic_until_the_output_is_known(matrix: str, output: str) -> None:
    parsed = workflow(
        f"    runs-on: [ubuntu-latest]\n    needs: detect\n    strategy:\n      {matrix}\n", others=DETECT
    )
    job = parsed.jobs["a"]
    assert rows.missing_outputs(job, EventContext()) == {"detect": ["needs.detect.outputs.m"]}
    row = only(parsed)
    assert (row.row, row.dynamic, row.test, row.gpus, row.runner) == ("a", DYNAMIC, None, None, "github-hosted")
    assert JobRow.of(row).dynamic == DYNAMIC
    assert rows.names(parsed, job, EventContext(), describe) == []

    situation = EventContext(outputs={"detect": {"m": output}})
    assert rows.missing_outputs(job, situation) == {}
    row = only(parsed, situation)
    assert "dynamic" not in JobRow.of(row).public()
    assert 1 in (row.matrix.get("n"), row.matrix.get("info", {}).get("n"))


def test_an_output_without_rows_gives_none() -> None:
    parsed = workflow(
        "    needs: detect\n    strategy: {matrix: '${{ fromJson(needs.detect.outputs.m) }}'}\n", others=DETECT
    )
    assert listed(parsed, EventContext(outputs={"detect": {"m": '{"info": []}'}})) == []


def test_a_matrix_of_a_callers_inputs_is_dynamic_and_waits_for_no_job() -> None:
    parsed = workflow("    strategy: {matrix: '${{ fromJson(inputs.m) }}'}\n")
    assert only(parsed).dynamic == "${{ fromJson(inputs.m) }}"
    assert rows.missing_outputs(parsed.jobs["a"], EventContext()) == {}
    parsed = workflow("    strategy: {matrix: {python: '${{ inputs.versions }}'}}\n")
    assert only(parsed).dynamic == "${{ inputs.versions }}"


def test_a_strategy_may_be_an_expression() -> None:
    parsed = workflow('    strategy: ${{ fromJson(\'{"matrix":{"n":[1,2]}}\') }}\n')
    assert [row.matrix for row in listed(parsed)] == [{"n": 1}, {"n": 2}]


def test_a_rows_environment_can_be_evaluated_again_in_another_situation() -> None:
    parsed = workflow("    env: {W: '${{ github.workspace }}'}\n", top="env: {S: '${{ github.sha }}'}\n")
    row = only(parsed)
    assert rows.environment(parsed, parsed.jobs["a"], row, EventContext(workspace="/w", sha="abc")) == {
        "S": "abc",
        "W": "/w",
    }


# Whatever cannot be read is an error wherever it stands, also where nothing evaluates it yet.


@pytest.mark.parametrize(("parts", "message"), CASES["errors"])
def test_an_error_names_file_line_job_and_step(parts: Mapping[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        listed(workflow(**parts))
    assert str(caught.value).startswith(message)
    assert caught.value.text.strip()


# The matrix: as YAML, and its combinations

MATRICES = cases("workflow/data/matrix.yaml")

# As YAML: a matrix, and its combinations.


@pytest.mark.parametrize(("matrix", "combinations"), MATRICES["a matrix has githubs combinations"])
def test_a_matrix_has_githubs_combinations(matrix: str, combinations: str) -> None:
    assert expand(yaml.safe_load(matrix)) == yaml.safe_load(combinations)


@pytest.mark.parametrize(("matrix", "message"), MATRICES["what github refuses is an error"])
def test_what_github_refuses_is_an_error(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        expand(matrix)


TOO_LARGE = [
    (f"strategy: {{matrix: {{include: [{', '.join(['{a: 1}'] * 1001)}]}}}}", "more than 1000 entries"),
    (f"strategy: {{matrix: {{a: [1], exclude: [{', '.join(['{a: 2}'] * 1001)}]}}}}", "more than 1000 entries"),
    (f'env: {{A: "${{{{ {"toJSON(" * 45}github.sha{")" * 45} }}}}"}}', "more than 1,000,000 characters"),
]


@pytest.mark.parametrize(("job", "message"), TOO_LARGE)
def test_a_matrix_or_a_text_that_memory_would_not_hold_is_an_error_of_the_workflow(job: str, message: str) -> None:
    workflow = read(f"on: pull_request\njobs: {{j: {{runs-on: x, steps: [{{run: x}}], {job}}}}}\n", "w.yml")
    with pytest.raises(WorkflowError, match=message) as caught:
        rows.rows(workflow, workflow.jobs["j"], EventContext(), describe)
    assert caught.value.exit_code == 2


# Jobs by their labels, and rows by parts of their names


def two_jobs() -> Workflow:
    text = """\
on: pull_request
jobs:
  cpu-unittest: {runs-on: ubuntu-latest, steps: [{run: x}], strategy: {matrix: {info: [{test_file: test_a.py}]}}}
  e2e-test-ckpt: {runs-on: gpu, steps: [{run: x}], strategy: {matrix: {info: [{test_file: b.py}, {test_file: c.py}]}}}
"""
    return read(text, "w.yml")


@pytest.mark.parametrize(
    ("label", "job"), [("ckpt", "e2e-test-ckpt"), ("e2e-test-ckpt", "e2e-test-ckpt"), ("cpu-unittest", "cpu-unittest")]
)
def test_a_job_is_found_by_its_label_and_by_its_name(label: str, job: str) -> None:
    assert job_of(two_jobs(), label).id == job


def test_an_unknown_label_names_the_nearest_and_all_others() -> None:
    with pytest.raises(UnknownName) as caught:
        job_of(two_jobs(), "ckp")
    assert str(caught.value) == "unknown label 'ckp' in w.yml; did you mean 'ckpt'?\nvalid: ckpt, cpu-unittest"


def named(*names: str) -> list[Row]:
    return [Row("l", "l", None, name, None, "", None, None, {}, "self-hosted", None) for name in names]


@pytest.mark.parametrize(("only", "chosen"), CASES["only chooses rows by parts of their names"])
def test_only_chooses_rows_by_parts_of_their_names(only: str | None, chosen: list[str]) -> None:
    assert [row.row for row in select(named("ppo", "ppo_long", "ckpt[a]", "a,ppo"), only, "l")] == chosen


def test_a_part_that_no_row_has_is_an_error_even_beside_one_that_fits() -> None:
    with pytest.raises(UnknownName) as caught:
        select(named("ppo", "ckpt"), "ppo,ckpr", "megatron")
    assert str(caught.value) == "unknown row 'ckpr' in label megatron; did you mean 'ckpt'?\nvalid: ckpt, ppo"


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
  after-ckpt: {runs-on: x, needs: [e2e-test-ckpt], steps: [run: a]}
  after: {runs-on: x, needs: [always, unknown], steps: [run: a]}
  after-all: {runs-on: x, needs: [after, never], if: always(), steps: [run: a]}
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
        LabelStart("w.yml", "unknown", "?", None,
            "only GitHub knows: github.event.pull_request.merged_by.login == 'a'"),
        LabelStart("w.yml", "after-ckpt", "with label", "run-ci-ckpt", "with the PR label run-ci-ckpt"),
        LabelStart("w.yml", "after", "?", None, "only GitHub knows: it needs unknown"),
        LabelStart("w.yml", "after-all", "yes", None, ""),
    ]  # fmt: skip


def test_a_workflow_that_does_not_start_starts_no_job() -> None:
    found = label_starts(read(f"on: push\n{JOBS}", "w.yml"), EventContext(), ["a.py"])
    assert {(each.starts, each.why) for each in found} == {("no", "starts on push only")}
