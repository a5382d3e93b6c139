"""What operators, property access, templates and conditions come to, and what is read off an expression unevaluated."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.expressions import condition, evaluate, interpolate, label_tests, references
from ci_tasks.workflow.values import Value, to_string
from tests.parts.cases import cases

CASES = cases("workflow/data/expressions.yaml")

CONTEXTS: dict[str, Value] = {
    "github": {
        "sha": "abc",
        "Ref": "refs/heads/main",
        "event": {"pull_request": {"labels": [{"name": "run-ci"}, {"name": "Bug", "tags": [1, 2]}, {"id": 3}]}},
    },
    "matrix": {"info": {"num_gpus": 8, "args": ""}, "list": ["a", "b"], "": "empty key", "1": "one", "true": "yes"},
    "env": {"FOO": "upper", "foo": "lower", "BAR": "bar"},
    "needs": {"a": {"outputs": {"x": "1"}}, "b": {"outputs": {"x": "2", "y": "3"}}, "c": {}},
}


VALUES = ("equality is loose", "order", "and and or return an operand", "property access", "a wildcard filters")


@pytest.mark.parametrize(("text", "value"), [row for table in VALUES for row in CASES[table]])
def test_an_expression_has_githubs_value(text: str, value: Value) -> None:
    found = evaluate(text, CONTEXTS)
    assert found == value and isinstance(found, bool) == isinstance(value, bool)


def test_chains_longer_than_pythons_stack_are_evaluated() -> None:
    assert evaluate(" || ".join(["''"] * 3000 + ["'end'"]), {}) == "end"
    assert references("${{ " + " || ".join(f"env.V{n}" for n in range(3000)) + " }}")[-1] == "env.V2999"


@pytest.mark.parametrize(("value", "text"), CASES["to string writes as github does"])
def test_to_string_writes_as_github_does(value: Value, text: str) -> None:
    assert to_string(value) == text


@pytest.mark.parametrize(("template", "value"), CASES["interpolate"])
def test_interpolate(template: str, value: Value) -> None:
    assert interpolate(template, CONTEXTS) == value


@pytest.mark.parametrize(("text", "by_status"), CASES["condition"])
def test_condition(text: str, by_status: list[bool]) -> None:
    assert [condition(text, CONTEXTS, status) for status in ("success", "failure", "cancelled")] == by_status


@pytest.mark.parametrize(("template", "names"), CASES["references"])
def test_references(template: str, names: list[str]) -> None:
    assert references(template) == names


@pytest.mark.parametrize(("text", "labels"), CASES["label tests"])
def test_label_tests(text: str, labels: list[str]) -> None:
    assert label_tests(text) == labels
