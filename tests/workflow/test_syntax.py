"""What parses, into which tree, and what a refusal says."""

from __future__ import annotations

import math

import pytest

from ci_tasks.workflow.expressions import ExpressionError, Node, parse
from tests.parts.cases import cases

CASES = cases("workflow/data/syntax.yaml")


def shape(node: Node) -> str:
    """The tree as text: `(kind value part …)`."""
    return f"({' '.join([node.kind, *([str(node.value)] if node.value is not None else []), *map(shape, node.parts)])})"


A, B, C = "(context github)", "(context env)", "(context job)"
TREES = CASES["a tree follows precedence"]


@pytest.mark.parametrize(("text", "tree"), TREES)
def test_a_tree_follows_precedence(text: str, tree: str) -> None:
    assert shape(parse(text)) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # The three words of JSON, in lower case only.
        ("null", None),
        ("true", True),
        # Whole numbers, also where written with a fraction or exponent: GitHub has doubles and prints 1.0 as 1.
        ("-9", -9),
        ("1.0", 1),
        ("1e3", 1000),
        ("-2.99e-2", -0.0299),
        # A fraction may start at the point where an operand is expected.
        (".5", 0.5),
        ("0xff", 255),
        ("0o17", 15),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        # Strings: a doubled quote is a quote, double quotes and backslashes are text.
        ("'It''s open'", "It's open"),
        ("'a\"b\\n'", 'a"b\\n'),
        (" \n 'x' \t", "x"),
    ],
)
def test_a_literal_has_its_value(text: str, value: object) -> None:
    node = parse(text)
    assert node.kind == "literal"
    assert node.value == value
    assert type(node.value) is type(value)


@pytest.mark.parametrize(("text", "position", "message"), CASES["a refusal names the place"])
def test_a_refusal_names_the_place(text: str, position: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert (caught.value.text, caught.value.position) == (text, position)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "position", "parts"),
    [
        ("true && gihtub.sha", 8, ["unknown context 'gihtub'", "did you mean 'github'", "matrix", "strategy"]),
        ("zzz", 0, ["unknown context 'zzz' (valid: env, github"]),
        # JSON's words have one spelling, so any other is a context.
        ("True", 0, ["unknown context 'True'"]),
        ("!contain(github, 'x')", 1, ["unknown function 'contain'", "did you mean 'contains'", "startsWith"]),
    ],
)
def test_an_unknown_name_lists_the_valid_ones(text: str, position: int, parts: list[str]) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.position == position
    assert [part for part in parts if part not in caught.value.message] == []


@pytest.mark.parametrize(("text", "message"), CASES["a call has the right number of arguments"])
def test_a_call_has_the_right_number_of_arguments(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        # As deep as GitHub allows.
        "!" * 49 + "true",
        "github" + ".x" * 49,
        # A chain of && or || is one level on GitHub.
        " && ".join(["true"] * 3000),
        " || ".join(["github.x"] * 3000),
    ],
)
def test_depth_within_the_limit_parses(text: str) -> None:
    assert len(list(parse(text).walk())) >= 50


@pytest.mark.parametrize(
    "text",
    [
        "!" * 50 + "true",
        "github" + ".x" * 50,
        "github" + "['x']" * 9000,
        "(" * 9000 + "1" + ")" * 9000,
        "toJSON(" * 9000,
        " == ".join(["1"] * 9000),
        "1 && (true || " * 60 + "1" + ")" * 60,
    ],
)
def test_depth_beyond_the_limit_is_an_expression_error(text: str) -> None:
    with pytest.raises(ExpressionError, match="nested more than 50 deep"):
        parse(text)
