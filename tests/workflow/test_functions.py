"""What each function returns and refuses, through `evaluate`."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.expressions import ExpressionError, evaluate, interpolate
from ci_tasks.workflow.values import Value
from tests.parts.cases import cases

CASES = cases("workflow/data/functions.yaml")

CONTEXTS: dict[str, Value] = {
    "github": {"labels": [{"name": "Run-CI"}, {"name": "bug"}, {"id": 3}], "none": [], "many": ["a", 1, None, True]},
    "env": {"A": "1"},
}


VALUES = ("contains", "starts with and ends with", "format", "join", "from json", "case")


@pytest.mark.parametrize(("text", "value"), [row for table in VALUES for row in CASES[table]])
def test_a_call_has_githubs_value(text: str, value: Value) -> None:
    found = evaluate(text, CONTEXTS)
    assert found == value and isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize(("text", "message"), CASES["format refuses braces without a meaning"])
def test_format_refuses_braces_without_a_meaning(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        evaluate(text, CONTEXTS)


@pytest.mark.parametrize(("value", "text"), CASES["to json is pretty printed"])
def test_to_json_is_pretty_printed(value: Value, text: str) -> None:
    assert evaluate("toJSON(github)", {"github": value}) == text


@pytest.mark.parametrize(("text", "shown"), CASES["from json shows what is not json"])
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
    for text in (doubled, "join(fromJSON('[1,2,3]'), env.LONG)", "format('{0}{0}', env.LONG)"):
        with pytest.raises(ExpressionError, match="the text has more than 1,000,000 characters"):
            evaluate(text, contexts)
    with pytest.raises(ExpressionError, match="more than 1,000,000"):
        interpolate("${{ env.LONG }}, ${{ env.LONG }}", contexts)
    assert evaluate("format('{0}', env.LONG)", contexts) == long
