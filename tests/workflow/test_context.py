"""The contexts of a pull request that carries the job's label; a value under them, and where an error of it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.workflow import secrets
from ci_tasks.workflow.context import EventContext, Resolver, contexts, how_to_give
from ci_tasks.workflow.expressions import evaluate
from ci_tasks.workflow.model import Job, Row, Step, Workflow, WorkflowInput
from ci_tasks.workflow.values import Unknown
from tests.parts.cases import cases, named

CASES = cases("workflow/data/context.yaml")

EVENT = EventContext(
    sha="abc", repository="THUDM/slime", workspace="/w", base="dev", secrets=("HF_TOKEN",),
    outputs={"detect": {"matrix": "[]"}, "other": {"x": "1"}},
)  # fmt: skip
JOB = Job("ckpt", 1, needs=("detect", "lint", "called"))
LINT = Job("lint", 5, outputs={"x": "${{ steps.a.outputs.b }}"})
JOBS = {"ckpt": JOB, "lint": LINT, "called": Job("called", 9, uses="x")}


def row(trigger: str | None, matrix: dict[str, Any], index: int, total: int) -> Row:
    blank = Row("ckpt", "ckpt", trigger, "ckpt", None, "", None, None, {}, "", None)
    return replace(blank, matrix=matrix, index=index, total=total)


WORKFLOW = Workflow("w.yml", "PR", JOBS, inputs={"image": WorkflowInput("string", "x:1"), "tag": WorkflowInput()})


@pytest.mark.parametrize(("expression", "value"), CASES["a row sees githubs contexts"])
def test_a_row_sees_githubs_contexts(expression: str, value: Any) -> None:
    values = contexts(EVENT, WORKFLOW, JOB, row("run-ci-ckpt", {"info": {"num_gpus": 8}}, 1, 3))
    assert evaluate(expression, values) == value


@pytest.mark.parametrize(("expression", "name"), CASES["what only github knows is unknown by its name"])
def test_what_only_github_knows_is_unknown_by_its_name(expression: str, name: str) -> None:
    value = evaluate(expression, contexts(EVENT, WORKFLOW, JOB, row("run-ci-ckpt", {}, 0, 1)))
    assert isinstance(value, Unknown) and value.names == (name,)


def test_a_given_payload_is_put_over_the_one_of_a_labelled_pull_request() -> None:
    payload = {"pull_request": {"number": 3, "head": {"ref": "fix"}, "user": {"login": "u"}}, "sender": {"login": "s"}}
    values = contexts(EventContext(given=GivenValues(event=payload)), WORKFLOW, JOB, row("run-ci", {}, 0, 1))
    names = ("github.event.number", "github.ref", "github.head_ref", "github.actor", "github.event.pull_request.state")
    assert [evaluate(name, values) for name in names] == [3, "refs/pull/3/merge", "fix", "s", "open"]
    assert evaluate("github.event.pull_request.user.login", values) == "u"
    assert isinstance(evaluate("github.event.pull_request.user.id", values), Unknown)


STRATEGIES = [
    (True, None, [True, 3]),  # GitHub's defaults
    (False, 2, [False, 2]),
    ("${{ github.event_name != 'pull_request' }}", "${{ fromJSON('1') }}", [False, 1]),
]


@pytest.mark.parametrize(("fail_fast", "max_parallel", "seen"), STRATEGIES)
def test_the_strategy_is_the_jobs_own(fail_fast: object, max_parallel: object, seen: list[object]) -> None:
    job = replace(JOB, fail_fast=fail_fast, max_parallel=max_parallel)
    values = contexts(EVENT, WORKFLOW, job, row(None, {}, 1, 3))
    assert [evaluate(f"strategy.{name}", values) for name in ("fail-fast", "max-parallel")] == seen


# Marks of secrets


@pytest.mark.parametrize(("text", "names", "shown", "split"), CASES["text with marks can be listed shown and split"])
def test_text_with_marks_can_be_listed_shown_and_split(
    text: str, names: list[str], shown: str, split: list[list[str | None]]
) -> None:
    assert (secrets.names(text), secrets.shown(text)) == (names, shown)
    assert list(map(list, secrets.split(text))) == split


# -- values ------------------------------------------------------------------------------------------------------------


CONTEXTS = {"matrix": {"n": 8, "name": "ckpt", "on": True, "list": [1, 2], "version": 3.1}, "env": {"A": "a"}}
RESOLVER = Resolver("w.yml", "cpu", 3, CONTEXTS)
STEP = Step("Run", 20)


@pytest.mark.parametrize(("raw", "value"), CASES["a value has its expressions evaluated"])
def test_a_value_has_its_expressions_evaluated(raw: Any, value: Any) -> None:
    assert RESOLVER.value(raw) == value


@pytest.mark.parametrize("raw", ["soon", True, "${{ matrix.list }}", "nan", float("inf"), [1]])
def test_what_is_no_number_is_an_error(raw: Any) -> None:
    with pytest.raises(WorkflowError, match=r"^w\.yml:3: job cpu: timeout-minutes is a number, not ") as caught:
        RESOLVER.number(raw, "timeout-minutes")
    assert f"timeout-minutes: {raw}" in str(caught.value)


# The text of a file, its key `k`, and where the refused part stands: line and text.
@named(("text", "line", "shown", "message"), CASES["an error names its line"])
def test_an_error_stands_on_the_line_of_the_refused_part(text: str, line: int, shown: str, message: str) -> None:
    raw = yaml_lines.load(text)["k"]
    with pytest.raises(WorkflowError) as caught:
        RESOLVER.value(raw, step=STEP)
    assert (caught.value.line, caught.value.text) == (line, shown)
    assert str(caught.value).startswith(f"w.yml:{line}: job cpu, step 'Run': ")
    assert message in str(caught.value)


CONDITIONS = [
    ("k: bogus()\n", 1, "bogus()"),
    ("k: |\n  success() &&\n  bogus()\n", 3, "  bogus()"),
    ("k: >-\n  success() &&\n  (env.A ||\n  bogus())\n", 4, "  bogus())"),
    ("k: ${{ bogus() }}\n", 1, "${{ bogus() }}"),
]


@pytest.mark.parametrize(("text", "line", "shown"), CONDITIONS)
def test_an_error_in_a_condition_stands_on_its_line(text: str, line: int, shown: str) -> None:
    raw = yaml_lines.load(text)["k"]
    for check in (RESOLVER.condition, lambda raw, step: RESOLVER.check(None, raw, step=step)):
        with pytest.raises(WorkflowError, match=f"^w.yml:{line}: job cpu, step 'Run': unknown function") as caught:
            check(raw, step=STEP)
        assert caught.value.text == shown


def test_text_without_a_line_of_its_own_stands_at_its_step_or_job() -> None:
    with pytest.raises(WorkflowError, match=r"^w\.yml:20: job cpu, step 'Run': "):
        RESOLVER.value("${{ bogus() }}", step=STEP)
    with pytest.raises(WorkflowError, match=r"^w\.yml:3: job cpu: "):
        RESOLVER.value("${{ bogus() }}")


def test_checking_reads_every_expression_and_evaluates_none() -> None:
    RESOLVER.check({"a": ["${{ fromJson('{') }}", 5, None]})
    with pytest.raises(WorkflowError, match="unknown function 'bogus'"):
        RESOLVER.check({"a": [{"b": "${{ bogus() }}"}]})


def test_what_nobody_can_give_has_no_hint() -> None:
    assert how_to_give(["github.repository_id", "steps.a.outputs.b"]) == ""
