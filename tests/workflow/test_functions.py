"""What each function returns and refuses, through `evaluate`."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.expressions import evaluate, interpolate
from ci_tasks.workflow.syntax import ExpressionError
from ci_tasks.workflow.values import Value

CONTEXTS: dict[str, Value] = {
    "github": {"labels": [{"name": "Run-CI"}, {"name": "bug"}, {"id": 3}], "none": [], "many": ["a", 1, None, True]},
    "env": {"A": "1"},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Text in text, without regard to case.
        ("contains('Hello world', 'LLO')", True),
        ("contains('Hello', 'x')", False),
        ("contains('', '')", True),
        # Other primitives become text first.
        ("contains(12345, 34)", True),
        ("contains('it is true', true)", True),
        ("contains('x', null)", True),
        # An item of an array is compared as == does; part of one is not enough.
        ("contains(github.labels.*.name, 'run-ci')", True),
        ("contains(github.labels.*.name, 'run')", False),
        ("contains(fromJSON('[\"1\"]'), 1)", True),
        ("contains(fromJSON('[0]'), null)", True),
        ("contains(github.none, null)", False),
        # Objects hold nothing, nor does text hold an array.
        ("contains(github, 'labels')", False),
        ("contains('Array', github.many)", False),
    ],
)
def test_contains(text: str, value: bool) -> None:
    assert evaluate(text, CONTEXTS) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("startsWith('Hello world', 'hE')", True),
        ("startsWith('Hello', 'ello')", False),
        ("endsWith('Hello world', 'LD')", True),
        ("endsWith('Hello', 'Hell')", False),
        ("startsWith(123, 12)", True),
        ("endsWith(true, 'UE')", True),
        ("startsWith(null, '')", True),
        # Arrays and objects have no text here, not even their kind.
        ("startsWith(github, 'Obj')", False),
        ("endsWith('Array', github.many)", False),
        # Case is set aside character by character, so that 'ß' is not 'ss'.
        ("startsWith('stra\u00dfe', 'STRASS')", False),
        ("startsWith('\u00dcber', '\u00fcB')", True),
    ],
)
def test_starts_with_and_ends_with(text: str, value: bool) -> None:
    assert evaluate(text, CONTEXTS) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("format('plain')", "plain"),
        ("format('{0} {1} {0}', 'a', 'b')", "a b a"),
        # Arguments become text as everywhere.
        ("format('{0}|{1}|{2}|{3}', 1.0, null, true, github)", "1||true|Object"),
        # Doubled braces are braces.
        ("format('{{0}}', 'a')", "{0}"),
        ("format('{{{0}}}', 'a')", "{a}"),
        # What an argument brings is not formatted again.
        ("format('{0}', '{1}')", "{1}"),
        ("format(12)", "12"),
    ],
)
def test_format(text: str, value: str) -> None:
    assert evaluate(text, CONTEXTS) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format('{0}')", r"asks for \{0\}, but there are 0 arguments"),
        ("format('{2}', 'a', 'b')", r"asks for \{2\}"),
        ("format('{" + "9" * 5000 + "}', 'a')", "asks for"),
        ("format('{', 'a')", "a brace"),
        ("format('}', 'a')", "a brace"),
        ("format('{0}}', 'a')", "a brace"),
        ("format('{a}', 'a')", "a brace"),
        ("format('{0:x}', 'a')", "a brace"),
        ("format('{-1}', 'a')", "a brace"),
    ],
)
def test_format_refuses_braces_without_a_meaning(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        evaluate(text, CONTEXTS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("join(github.many)", "a,1,,true"),
        ("join(github.many, '; ')", "a; 1; ; true"),
        ("join(github.labels.*.name, '')", "Run-CIbug"),
        ("join(github.labels)", "Object,Object,Object"),
        # A primitive is an array of itself, an object of nothing.
        ("join('x', '-')", "x"),
        ("join(github.none)", ""),
        ("join(github)", ""),
        # A separator that is no primitive is as if absent.
        ("join(github.many, github)", "a,1,,true"),
        ("join(github.many, 0)", "a010" + "0true"),
    ],
)
def test_join(text: str, value: str) -> None:
    assert evaluate(text, CONTEXTS) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.0, "1"),
        ("x", '"x"'),
        ([], "[]"),
        ({}, "{}"),
        # Two spaces a level, one item a line, empty collections on their own line.
        ([1, "a", None], '[\n  1,\n  "a",\n  null\n]'),
        ({"a": {"b": [True]}, "c": []}, '{\n  "a": {\n    "b": [\n      true\n    ]\n  },\n  "c": []\n}'),
    ],
)
def test_to_json_is_pretty_printed(value: Value, text: str) -> None:
    assert evaluate("toJSON(github)", {"github": value}) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('fromJSON(\'{"a": [1, 2.5, null, true, "x"]}\')', {"a": [1, 2.5, None, True, "x"]}),
        ("fromJSON('[1, 2]')[1]", 2),
        ("fromJSON('{\"Key\": 1}').kEY", 1),
        ("fromJSON(' 1.0 ')", 1),
        # Not only strings: what is given becomes text first.
        ("fromJSON(true)", True),
        ("fromJSON(30)", 30),
        # Numbers are doubles.
        ("fromJSON('12345678901234567890')", 12345678901234567890.0),
        # A line end inside a string is taken, as a block scalar may bring one.
        ("fromJSON('\"a\nb\"')", "a\nb"),
    ],
)
def test_from_json(text: str, value: Value) -> None:
    assert evaluate(text, {}) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fromJSON('{oops')", "'{oops'"),
        ("fromJSON('')", "''"),
        ("fromJSON(null)", "''"),
        ("fromJSON('1 2')", "'1 2'"),
        ("fromJSON(env.LONG)", "x…"),
        ("fromJSON(env.DEEP)", "[…"),
    ],
)
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("case(true, 'a', 'b')", "a"),
        ("case(false, 'a', 'b')", "b"),
        ("case(false, 'a', 1 == 1, 'b', 'c')", "b"),
        # Only what is chosen is evaluated.
        ("case(true, 'a', hashFiles('x'))", "a"),
        ("case(true, 'a', 'no boolean', 'b', 'c')", "a"),
    ],
)
def test_case_returns_the_value_of_the_first_true_condition(text: str, value: str) -> None:
    assert evaluate(text, {}) == value


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
