"""What holds of any text and any value."""

from __future__ import annotations

import contextlib
import re

from hypothesis import example, given
from hypothesis import strategies as st

from ci_tasks.workflow.expressions import ExpressionError, condition, evaluate, interpolate, parse, references
from ci_tasks.workflow.values import Value

# Text near the grammar finds more than text at large.
WORDS = (
    "github env . [ ] ( ) , * ' '' 'a' \" ! != == = < <= && || & 1 -1 .5 0xff 1e9 null true NaN ${{ }} contains( "
    "format( toJSON( fromJSON( case( always() hashFiles( {0} _x \n"
)
TOKENS = st.sampled_from(WORDS.split(" "))
NEAR = st.lists(TOKENS, max_size=14).flatmap(
    lambda tokens: st.sampled_from(["", " "]).map(lambda gap: gap.join(tokens))
)
TEXT = st.text() | NEAR
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(width=16, allow_nan=False, allow_infinity=False)
PRIMITIVES = st.none() | st.booleans() | NUMBERS | st.text()


def nest(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)


# Numbers of at most 15 digits, for more do not survive GitHub's way of writing them.
SHORT = st.none() | st.booleans() | st.integers(-(10**14), 10**14) | st.text()
VALUES: st.SearchStrategy[Value] = st.recursive(SHORT, nest, max_leaves=12)


@given(TEXT, st.dictionaries(st.sampled_from(["github", "env"]), VALUES))
def test_evaluation_raises_nothing_but_expression_error(text: str, contexts: dict[str, Value]) -> None:
    for function in (evaluate, interpolate, condition):
        with contextlib.suppress(ExpressionError):
            function(text, contexts)
    with contextlib.suppress(ExpressionError):
        references(text)


def _shape(text: str) -> str:
    """The tree as text, since two NaN are not equal, without the places of calls, which blanks move."""
    return re.sub(r"position=\d+", "", repr(parse(text)))


@given(TEXT)
@example("NaN")
@example("always()")
def test_blanks_and_parentheses_around_an_expression_change_nothing(text: str) -> None:
    try:
        shape = _shape(text)
    except ExpressionError:
        return
    assert _shape(f" \n{text}\t ") == _shape(f"({text})") == shape


@given(st.text().filter(lambda text: "${{" not in text), st.text())
def test_text_around_an_expression_is_kept(before: str, value: str) -> None:
    assert interpolate(f"{before}${{{{ env.X }}}}", {"env": {"X": value}}) == before + value


@given(VALUES)
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
