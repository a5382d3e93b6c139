"""What operators, property access, templates and conditions come to, and what is read off an expression unevaluated."""

from __future__ import annotations

import math

import pytest

from ci_tasks.workflow.expressions import condition, evaluate, interpolate, label_tests, references
from ci_tasks.workflow.values import Value, to_string

FAILED = "failure"
CANCELLED = "cancelled"

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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # One kind: by value, strings without regard to case.
        ("null == null", True),
        ("1 == 1.0", True),
        ("'Abc' == 'aBC'", True),
        ("'stra\u00dfe' == 'STRASSE'", False),
        ("true != false", True),
        # Across kinds both become numbers: null 0, booleans 0 and 1, text as parsed.
        ("null == 0", True),
        ("null == ''", True),
        ("true == '1'", True),
        ("true == 'true'", False),
        ("' 12 ' == 12", True),
        ("'0XFF' == 255", False),
        ("'1_000' == 1000", False),
        ("'Infinity' == Infinity", True),
        ("'x' == 0", False),
        # But two strings stay strings.
        ("'1.0' == '1'", False),
        # NaN equals nothing, itself included.
        ("NaN == NaN", False),
        ("NaN != NaN", True),
        # Arrays and objects equal only themselves, and never a primitive.
        ("github == github", True),
        ("fromJSON('[]') == fromJSON('[]')", False),
        ("fromJSON('[]') == ''", False),
        ("github == 'Object'", False),
        ("github == null", False),
    ],
)
def test_equality_is_loose(text: str, value: bool) -> None:
    assert evaluate(text, CONTEXTS) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 < 2", True),
        ("2 <= 2", True),
        ("'10' > 9", True),
        # Two strings go by their characters, in upper case: '_' comes behind 'Z'.
        ("'10' > '9'", False),
        ("'a' < 'B'", True),
        ("'_' > 'z'", True),
        # Other primitives become numbers.
        ("null < 1", True),
        ("false < true", True),
        # NaN is neither less nor more, nor are arrays and objects; <= and >= also hold of what is equal.
        ("'x' >= 1", False),
        ("NaN <= NaN", False),
        ("github > 0", False),
        ("github <= github", True),
        ("fromJSON('[1]') < fromJSON('[2]')", False),
        # From the left: true < 3.
        ("1 < 2 < 3", True),
        ("3 > 2 > 1", False),
    ],
)
def test_order(text: str, value: bool) -> None:
    assert evaluate(text, CONTEXTS) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # The operand that decides is the value.
        ("'' && 'b'", ""),
        ("null && 'b'", None),
        ("'' || 'b'", "b"),
        ("0 || '' || false || 'd'", "d"),
        ("1 && 2 && 0 && 4", 0),
        ("matrix.info.args || matrix.info.num_gpus", 8),
        # The poor man's conditional.
        ("github.ref == 'refs/heads/main' && 'yes' || 'no'", "yes"),
        # What does not decide is not evaluated.
        ("'a' || hashFiles('x')", "a"),
        ("'' && hashFiles('x')", ""),
        ("!!'a'", True),
    ],
)
def test_and_and_or_return_an_operand(text: str, value: Value) -> None:
    assert evaluate(text, CONTEXTS) == value


def test_chains_longer_than_pythons_stack_are_evaluated() -> None:
    assert evaluate(" || ".join(["''"] * 3000 + ["'end'"]), {}) == "end"
    assert references("${{ " + " || ".join(f"env.V{n}" for n in range(3000)) + " }}")[-1] == "env.V2999"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Names go without regard to case, contexts too.
        ("github.SHA", "abc"),
        ("github['REF']", "refs/heads/main"),
        # Except in env, where the runner minds case on Linux.
        ("env.FOO", "upper"),
        ("env.foo", "lower"),
        ("env['Bar']", None),
        # What is not there is null, and so is all below it.
        ("github.nothing.at.all", None),
        ("github.sha.length", None),
        ("secrets.TOKEN", None),
        # Arrays take numbers, cut to whole ones, and what converts to a number.
        ("matrix.list[0]", "a"),
        ("matrix.list[1.9]", "b"),
        ("matrix.list['1']", "b"),
        ("matrix.list[true]", "b"),
        ("matrix.list[-1]", None),
        ("matrix.list[NaN]", None),
        ("matrix.list.first", None),
        ("matrix.list[matrix]", None),
        # Objects take text, and what converts to text.
        ("matrix[null]", "empty key"),
        ("matrix[1]", "one"),
        ("matrix[true]", "yes"),
        # Parentheses change nothing.
    ],
)
def test_property_access(text: str, value: Value) -> None:
    assert evaluate(text, CONTEXTS) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Over an array, and over an object's values; items without the property are dropped.
        ("github.event.pull_request.labels.*.name", ["run-ci", "Bug"]),
        ("github.event.pull_request.labels[*].NAME", ["run-ci", "Bug"]),
        ("needs.*.outputs.x", ["1", "2"]),
        # A star after a star flattens; an index goes to each item.
        ("needs.*.outputs.*", ["1", "2", "3"]),
        ("github.event.pull_request.labels.*.tags[0]", [1]),
        ("github.event.pull_request.labels.*[0]", []),
        ("fromJSON('[[1, 2], [3]]').*[0]", [1, 3]),
        ("fromJSON('[[1, 2], [3], 4]').*.*", [1, 2, 3]),
        # Nothing to filter is an empty array, not null.
        ("github.sha.*", []),
        ("github.nothing.*.name", []),
    ],
)
def test_a_wildcard_filters(text: str, value: Value) -> None:
    assert evaluate(text, CONTEXTS) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (False, "false"),
        ([1], "Array"),
        ({}, "Object"),
        # .NET's G15: fifteen digits, no trailing zeros, E+ from 1E+15 on and below 0.0001.
        (1.0, "1"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.333333333333333"),
        (123456789012345, "123456789012345"),
        (1e15, "1E+15"),
        (12345678901234567, "1.23456789012346E+16"),
        (1e21, "1E+21"),
        (0.0001, "0.0001"),
        (0.00001, "1E-05"),
        (-0.0, "0"),
        (math.inf, "Infinity"),
        (math.nan, "NaN"),
    ],
)
def test_to_string_writes_as_github_does(value: Value, text: str) -> None:
    assert to_string(value) == text


@pytest.mark.parametrize(
    ("template", "value"),
    [
        # One expression and nothing else keeps its type.
        ("${{ matrix.info.num_gpus }}", 8),
        ("${{matrix.list}}", ["a", "b"]),
        ("${{\n  'a'\n}}", "a"),
        # Anything beside it, even a blank, makes a string.
        ("${{ matrix.info.num_gpus }} ", "8 "),
        ("--gpus ${{ matrix.info.num_gpus }} --on ${{ true }}", "--gpus 8 --on true"),
        ("${{ matrix.list }}${{ matrix }}", "ArrayObject"),
        # The end is the first }} outside a string.
        ("${{ '}}' }}", "}}"),
        ("${{ 'it''s }}' }}!", "it's }}!"),
        ("${{ '${{' }}", "${{"),
        ("${{ 'a' }}}}", "a}}"),
        # Braces and quotes in the text are text.
        ("{0} 'q' ${{ 'a' }} {{b}} }} $", "{0} 'q' a {{b}} }} $"),
        # What an expression brings is not read again.
        ("${{ format('${{{{ {0} }}}}', 'x') }}", "${{ x }}"),
        # No expression.
        ("$ {{ github.sha }}", "$ {{ github.sha }}"),
    ],
)
def test_interpolate(template: str, value: Value) -> None:
    assert interpolate(template, CONTEXTS) == value


@pytest.mark.parametrize(
    ("text", "by_status"),
    [
        # The three results are for a job that succeeded, failed, was cancelled.
        # No text is success().
        ("", [True, False, False]),
        # Without a status function there is an implicit success() &&.
        ("${{ true }}", [True, False, False]),
        ("github.sha == 'ABC'", [True, False, False]),
        ("'' || 0", [False, False, False]),
        # With one there is none, wherever it stands.
        ("always()", [True, True, True]),
        ("failure()", [False, True, False]),
        ("!cancelled()", [True, True, False]),
        ("github.sha == 'abc' && (failure() || cancelled())", [False, True, True]),
        ("true || always()", [True, True, True]),
        # Its name in a string is no call.
        ("contains('always()', 'always')", [True, False, False]),
        # Text beside ${{ }} makes a non-empty string, and hence true; status functions inside still count.
        ("${{ false }} && false", [True, False, False]),
        ("!${{ true }}", [True, False, False]),
        ("${{ failure() }} || x", [True, True, True]),
        ("{'${{ false }}'", [True, False, False]),
        # A call outside of ${{ }} is mere text then.
        ("${{ false }} || always()", [True, False, False]),
        # Two empty parts are an empty string.
        ("${{ '' }}${{ null }}", [False, False, False]),
        # A lone string in ${{ }} is a plain scalar to GitHub, read as an expression in turn.
        ("${{ 'false' }}", [False, False, False]),
        ("${{ 'always()' }}", [True, True, True]),
        ("${{ '' }}", [True, False, False]),
        # Without the braces it is a string.
        ("'false'", [True, False, False]),
    ],
)
def test_condition(text: str, by_status: list[bool]) -> None:
    assert [condition(text, CONTEXTS, status) for status in ("success", FAILED, CANCELLED)] == by_status


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("${{ matrix.info.num_gpus || needs.a.outputs.b }}", ["matrix.info.num_gpus", "needs.a.outputs.b"]),
        # Each once, over all parts, in order.
        ("${{ env.B }} ${{ env.A }} ${{ env.B }}", ["env.B", "env.A"]),
        # Constant indexes belong to the name.
        ("${{ matrix['info'].list[0] }}", ["matrix.info.list.0"]),
        # A wildcard or an index that is no constant ends it; what the index reads counts as well.
        ("${{ github.event.labels.*.name }}", ["github.event.labels"]),
        ("${{ needs[matrix.key].outputs }}", ["needs", "matrix.key"]),
        ("${{ fromJSON(needs.a.outputs.b).c }}", ["needs.a.outputs.b"]),
        # The name of the context is GitHub's, those below are the text's.
        ("${{ MATRIX.Info }}", ["matrix.Info"]),
        ("${{ 'github.sha' }} github.ref", []),
    ],
)
def test_references(template: str, names: list[str]) -> None:
    assert references(template) == names


LABELS = "github.event.pull_request.labels"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (f"contains({LABELS}.*.name, 'run-ci')", ["run-ci"]),
        (f"${{{{ contains({LABELS}[*].name, 'run-ci') }}}}", ["run-ci"]),
        (f"CONTAINS({LABELS.replace('github', 'GitHub')}.*.Name, 'Run-CI')", ["Run-CI"]),
        ("contains(github['event'].pull_request.labels.*.name, 'x')", ["x"]),
        # All of them, each once, wherever they stand.
        (
            f"always() && (contains({LABELS}.*.name, 'b') || contains({LABELS}.*.name, 'a') "
            f"|| contains({LABELS}.*.name, 'b'))",
            ["b", "a"],
        ),
        # What is negated does not start a job; twice negated it does.
        (f"!contains({LABELS}.*.name, 'skip') && contains({LABELS}.*.name, 'run')", ["run"]),
        (f"!(github.event.pull_request.draft || contains({LABELS}.*.name, 'skip'))", []),
        (f"!!contains({LABELS}.*.name, 'run')", ["run"]),
        # Other tests are no label tests.
        ("contains(github.event.pull_request.title, 'x')", []),
        (f"contains({LABELS}.*.id, 'x')", []),
        (f"contains({LABELS}.*.name, matrix.label)", []),
        (f"contains(toJSON({LABELS}.*.name), 'x')", []),
        ("", []),
    ],
)
def test_label_tests(text: str, labels: list[str]) -> None:
    assert label_tests(text) == labels
