"""What operators, property access, templates and conditions come to, and what is read off an expression unevaluated."""

from __future__ import annotations

import time

import pytest

from ci_tasks.workflow.expressions import ExpressionError, condition, evaluate, interpolate, label_tests, references
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


# Functions

CALLS = cases("workflow/data/functions.yaml")

CALLED_WITH: dict[str, Value] = {
    "github": {"labels": [{"name": "Run-CI"}, {"name": "bug"}, {"id": 3}], "none": [], "many": ["a", 1, None, True]},
    "env": {"A": "1"},
}


RETURNS = ("contains", "starts with and ends with", "format", "join", "from json", "case")


@pytest.mark.parametrize(("text", "value"), [row for table in RETURNS for row in CALLS[table]])
def test_a_call_has_githubs_value(text: str, value: Value) -> None:
    found = evaluate(text, CALLED_WITH)
    assert found == value and isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize(("text", "message"), CALLS["format refuses braces without a meaning"])
def test_format_refuses_braces_without_a_meaning(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        evaluate(text, CALLED_WITH)


@pytest.mark.parametrize(("value", "text"), CALLS["to json is pretty printed"])
def test_to_json_is_pretty_printed(value: Value, text: str) -> None:
    assert evaluate("toJSON(github)", {"github": value}) == text


@pytest.mark.parametrize(("text", "shown"), CALLS["from json shows what is not json"])
def test_from_json_shows_what_is_not_json(text: str, shown: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, {"env": {"LONG": "x" * 999, "DEEP": "[" * 200000}})
    assert shown in caught.value.message
    assert "not JSON" in caught.value.message


def test_to_json_refuses_what_is_nested_too_deeply() -> None:
    value: Value = []
    for _ in range(100000):
        value = [value]
    with pytest.raises(ExpressionError, match="nested too deeply"):
        evaluate("toJSON(env)", {"env": value})


def test_hash_files_says_that_it_needs_the_checkout() -> None:
    with pytest.raises(ExpressionError, match="needs the files of the checkout and is not supported") as caught:
        evaluate("github.x || hashFiles('**/x.lock')", {})
    assert caught.value.position == 12


def test_a_text_of_more_than_a_megabyte_is_refused_before_it_is_made() -> None:
    doubled = "github.sha"
    for _ in range(40):
        doubled = f"format('{{0}}{{0}}', {doubled})"
    long = "x" * 1_000_000
    contexts: dict[str, Value] = {"github": {"sha": "abc"}, "env": {"LONG": long}}
    escaped = "env.LONG"
    for _ in range(40):
        escaped = f"toJSON({escaped})"
    for text in (
        doubled,
        escaped,
        "toJSON(env.LONG)",
        "join(fromJSON('[1,2,3]'), env.LONG)",
        "format('{0}{0}', env.LONG)",
    ):
        with pytest.raises(ExpressionError, match="the text has more than 1,000,000 characters"):
            evaluate(text, contexts)
    with pytest.raises(ExpressionError, match="more than 1,000,000"):
        interpolate("${{ env.LONG }}, ${{ env.LONG }}", contexts)
    assert evaluate("format('{0}', env.LONG)", contexts) == long


def test_a_number_of_any_length_is_one() -> None:
    assert evaluate(f"0x{'f' * 300} == Infinity", {}) is True


def test_a_text_full_of_unclosed_expressions_is_refused_at_once() -> None:
    began = time.process_time()
    with pytest.raises(ExpressionError, match="not closed"):
        interpolate("${{" * 8000, {})
    assert time.process_time() < began + 2
