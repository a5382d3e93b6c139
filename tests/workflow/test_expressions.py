"""What operators, property access, templates and conditions come to, and what is read off an expression unevaluated."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ci_tasks.workflow import expressions
from ci_tasks.workflow.expressions import ExpressionError, condition, evaluate, interpolate, parse, references
from ci_tasks.workflow.values import OpenObject, Unknown, Value, shown, to_string
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
    assert expressions.label_tests(text) == labels


# Functions

CALLS = cases("workflow/data/functions.yaml")

CALLED_WITH: dict[str, Value] = {
    "github": {"labels": [{"name": "Run-CI"}, {"name": "bug"}, {"id": 3}], "none": [], "many": ["a", 1, None, True]},
    "env": {"A": "1"},
}


VALUES = ("equality is loose", "order", "and and or return an operand", "property access", "a wildcard filters")
RETURNS = ("contains", "starts with and ends with", "format", "join", "from json", "case")
EVALUATED = [(CONTEXTS, *row) for table in VALUES for row in CASES[table]]
EVALUATED += [(CALLED_WITH, *row) for table in RETURNS for row in CALLS[table]]


@pytest.mark.parametrize(("contexts", "text", "value"), EVALUATED, ids=[text for _, text, _ in EVALUATED])
def test_an_expression_or_a_call_has_githubs_value(contexts: dict[str, Value], text: str, value: Value) -> None:
    found = evaluate(text, contexts)
    assert found == value and isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize(("value", "text"), CALLS["to json is pretty printed"])
def test_to_json_is_pretty_printed(value: Value, text: str) -> None:
    assert evaluate("toJSON(github)", {"github": value}) == text


@pytest.mark.parametrize(("text", "shown"), CALLS["from json shows what is not json"])
def test_from_json_shows_what_is_not_json(text: str, shown: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, {"env": {"LONG": "x" * 999, "DEEP": "[" * 200000}})
    assert shown in caught.value.message and "not JSON" in caught.value.message


def test_to_json_refuses_what_is_nested_too_deeply() -> None:
    value: Value = []
    for _ in range(100000):
        value = [value]
    with pytest.raises(ExpressionError, match="nested too deeply"):
        evaluate("toJSON(env)", {"env": value})


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


# -- what only GitHub knows stays unknown through operators and functions, unless the result does not depend on it -----


UNKNOWN = cases("workflow/data/unknown-results.yaml")

OPEN: dict[str, Value] = {
    "vars": OpenObject("vars", {"KNOWN": "k"}),
    "secrets": OpenObject("secrets", {"GIVEN": "s"}, absent=True),
    "matrix": {"name": "m", "list": ["a", "b"]},
    "github": {
        "event_name": "pull_request",
        "event": {"sender": OpenObject("github.event.sender"), "items": [{"n": "x"}, OpenObject("item", {"n": "y"})]},
    },
    "needs": {"a": {"result": "success", "outputs": {"x": Unknown.named_value("needs.a.outputs.x")}}},
    "env": {"U": Unknown.named_value("vars.FROM")},
}


@pytest.mark.parametrize(("expression", "names"), UNKNOWN["what depends on it is unknown and names it"])
def test_what_depends_on_it_is_unknown_and_names_it(expression: str, names: list[str]) -> None:
    value = evaluate(expression, OPEN)
    unknown = value[0] if isinstance(value, list) else value
    assert isinstance(unknown, Unknown) and list(unknown.names) == names


@pytest.mark.parametrize(("expression", "value"), UNKNOWN["what does not depend on it has its value"])
def test_what_does_not_depend_on_it_has_its_value(expression: str, value: object) -> None:
    assert evaluate(expression, OPEN) == value


@pytest.mark.parametrize(("text", "holds"), UNKNOWN["an if is undecided only where it depends on it"])
def test_an_if_is_undecided_only_where_it_depends_on_it(text: str, holds: bool | None) -> None:
    decided = condition(text, OPEN)
    assert (None if isinstance(decided, Unknown) else decided) is holds


def test_a_text_shows_what_is_unknown_in_it_by_name() -> None:
    value = interpolate("rm -rf ${{ vars.DIR }}/${{ matrix.name }}/${{ vars.A == vars.B }}", OPEN)
    assert isinstance(value, Unknown)
    assert shown(value) == "rm -rf <vars.DIR>/m/<vars.A, vars.B>"
    assert value.names == ("vars.DIR", "vars.A", "vars.B")


# -- what parses, into which tree, and what a refusal says -------------------------------------------------------------


SYNTAX = cases("workflow/data/syntax.yaml")


def shape(node: expressions.Node) -> str:
    """The tree as text: `(kind value part …)`."""
    return f"({' '.join([node.kind, *([str(node.value)] if node.value is not None else []), *map(shape, node.parts)])})"


@pytest.mark.parametrize(("text", "tree"), SYNTAX["a tree follows precedence"])
def test_a_tree_follows_precedence(text: str, tree: str) -> None:
    assert shape(parse(text)) == tree


LITERALS = [
    # The three words of JSON, in lower case only.
    ("null", None), ("true", True),
    # Whole numbers, also where written with a fraction or exponent: GitHub has doubles and prints 1.0 as 1.
    ("-9", -9), ("1.0", 1), ("1e3", 1000), ("-2.99e-2", -0.0299),
    # A fraction may start at the point where an operand is expected.
    (".5", 0.5), ("0xff", 255), ("0o17", 15), ("Infinity", math.inf), ("-Infinity", -math.inf),
    # Strings: a doubled quote is a quote, double quotes and backslashes are text.
    ("'It''s open'", "It's open"), ("'a\"b\\n'", 'a"b\\n'), (" \n 'x' \t", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), LITERALS)
def test_a_literal_has_its_value(text: str, value: object) -> None:
    node = parse(text)
    assert (node.kind, node.value) == ("literal", value)
    assert type(node.value) is type(value)


REFUSALS: list[tuple[str, int, list[str]]] = [
    ("true && gihtub.sha", 8, ["unknown context 'gihtub'", "did you mean 'github'", "matrix", "strategy"]),
    ("zzz", 0, ["unknown context 'zzz' (valid: env, github"]),
    # JSON's words have one spelling, so any other is a context.
    ("True", 0, ["unknown context 'True'"]),
    ("!contain(github, 'x')", 1, ["unknown function 'contain'", "did you mean 'contains'", "startsWith"]),
    *((text, position, [message]) for text, position, message in SYNTAX["a refusal names the place"]),
]


@pytest.mark.parametrize(("text", "position", "parts"), REFUSALS)
def test_a_refusal_names_the_place_and_the_valid_names(text: str, position: int, parts: list[str]) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert (caught.value.text, caught.value.position) == (text, position)
    assert [part for part in parts if part not in caught.value.message] == []


WRONG_CALLS = [*SYNTAX["a call has the right number of arguments"], *CALLS["format refuses braces without a meaning"]]


@pytest.mark.parametrize(("text", "message"), WRONG_CALLS)
def test_a_call_with_other_arguments_than_it_takes_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        evaluate(text, CALLED_WITH)


SHALLOW = [
    # As deep as GitHub allows.
    "!" * 49 + "true",
    "github" + ".x" * 49,
    # A chain of && or || is one level on GitHub.
    " && ".join(["true"] * 3000),
    " || ".join(["github.x"] * 3000),
]


@pytest.mark.parametrize("text", SHALLOW)
def test_depth_within_the_limit_parses(text: str) -> None:
    assert len(list(parse(text).walk())) >= 50


TOO_DEEP = [
    "!" * 50 + "true",
    "github" + ".x" * 50,
    "github" + "['x']" * 9000,
    "(" * 9000 + "1" + ")" * 9000,
    "toJSON(" * 9000,
    " == ".join(["1"] * 9000),
    "1 && (true || " * 60 + "1" + ")" * 60,
]


@pytest.mark.parametrize("text", TOO_DEEP)
def test_depth_beyond_the_limit_is_an_expression_error(text: str) -> None:
    with pytest.raises(ExpressionError, match="nested more than 50 deep"):
        parse(text)


# -- what holds of any text and any value ------------------------------------------------------------------------------


# Text near the grammar finds more than text at large.
WORDS = (
    "github env . [ ] ( ) , * ' '' 'a' \" ! != == = < <= && || & 1 -1 .5 0xff 1e9 null true NaN ${{ }} contains( "
    "format( toJSON( fromJSON( case( always() hashFiles( {0} _x \n"
)
NEAR = st.lists(st.sampled_from(WORDS.split(" ")), max_size=14).flatmap(
    lambda tokens: st.sampled_from(["", " "]).map(lambda gap: gap.join(tokens))
)
TEXT = st.text() | NEAR
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(width=16, allow_nan=False, allow_infinity=False)
PRIMITIVES = st.none() | st.booleans() | NUMBERS | st.text()
# Numbers of at most 15 digits, for more do not survive GitHub's way of writing them.
SHORT = st.none() | st.booleans() | st.integers(-(10**14), 10**14) | st.text()
ANY_VALUE: st.SearchStrategy[Value] = st.recursive(
    SHORT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@given(TEXT, st.dictionaries(st.sampled_from(["github", "env"]), ANY_VALUE))
def test_evaluation_raises_nothing_but_expression_error(text: str, contexts: dict[str, Value]) -> None:
    for function in (evaluate, interpolate, condition):
        with contextlib.suppress(ExpressionError):
            function(text, contexts)
    with contextlib.suppress(ExpressionError):
        references(text)


@given(TEXT)
@example("NaN")
@example("always()")
def test_blanks_and_parentheses_around_an_expression_change_nothing(text: str) -> None:
    try:
        tree = shape(parse(text))
    except ExpressionError:
        return
    assert shape(parse(f" \n{text}\t ")) == shape(parse(f"({text})")) == tree


@given(st.text().filter(lambda text: "${{" not in text), st.text())
def test_text_around_an_expression_is_kept(before: str, value: str) -> None:
    assert interpolate(f"{before}${{{{ env.X }}}}", {"env": {"X": value}}) == before + value


@given(ANY_VALUE)
def test_json_round_trips(value: Value) -> None:
    assert evaluate("fromJSON(toJSON(env))", {"env": value}) == value


@given(PRIMITIVES, PRIMITIVES)
def test_comparisons_agree_with_each_other(left: Value, right: Value) -> None:
    def holds(op: str) -> Value:
        return evaluate(f"env.l {op} env.r", {"env": {"l": left, "r": right}})

    assert holds("==") is not holds("!=")
    assert holds("<=") is (holds("==") or holds("<"))
    assert holds(">=") is (holds("==") or holds(">"))
    assert not (holds("<") and holds(">"))
    assert holds("==") is evaluate("env.r == env.l", {"env": {"l": left, "r": right}})
