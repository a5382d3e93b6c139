"""Values are evaluated as GitHub does, and an error names job, step, line and the very text."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.context import Resolver, how_to_give
from ci_tasks.workflow.model import Step

CONTEXTS = {"matrix": {"n": 8, "name": "ckpt", "on": True, "list": [1, 2], "version": 3.1}, "env": {"A": "a"}}
RESOLVER = Resolver("w.yml", "cpu", 3, CONTEXTS)
STEP = Step("Run", 20)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        # One expression keeps its type, text around it makes a string, other scalars stay.
        ("${{ matrix.n }}", 8),
        ("${{ matrix.list }}", [1, 2]),
        ("x${{ matrix.n }}", "x8"),
        (5, 5),
        (None, None),
        (True, True),
        # Inside of mappings and lists.
        ({"a": ["${{ matrix.on }}", {"b": "${{ matrix.name }}"}]}, {"a": [True, {"b": "ckpt"}]}),
    ],
)
def test_a_value_has_its_expressions_evaluated(raw: Any, value: Any) -> None:
    assert RESOLVER.value(raw) == value


@pytest.mark.parametrize("raw", ["soon", True, "${{ matrix.list }}", "nan", float("inf"), [1]])
def test_what_is_no_number_is_an_error(raw: Any) -> None:
    with pytest.raises(WorkflowError, match=r"^w\.yml:3: job cpu: timeout-minutes is a number, not ") as caught:
        RESOLVER.number(raw, "timeout-minutes")
    assert f"timeout-minutes: {raw}" in str(caught.value)


# The text of a file, its key `k`, and where the refused part stands: line and text.
PLACES = [
    ("one line", "k: ${{ bogus() }}\n", 1, "${{ bogus() }}", "unknown function 'bogus'"),
    ("behind its key", "# x\nk:\n  a ${{ bogus() }}\n", 3, "a ${{ bogus() }}", "bogus"),
    ("a literal block", "k: |\n  one\n  two ${{ bogus() }}\n  three\n", 3, "  two ${{ bogus() }}", "bogus"),
    ("behind empty lines", "k: |\n\n\n  x ${{ bogus() }}\n", 4, "  x ${{ bogus() }}", "bogus"),
    # A folded block's value has no line ends where the file has them.
    ("a folded block", "k: >\n  one\n  two\n  ${{ bogus() }}\n  four\n", 4, "  ${{ bogus() }}", "bogus"),
    ("a folded block, stripped", "k: >-\n\n  one\n  ${{ bogus() }}\n", 4, "  ${{ bogus() }}", "bogus"),
    ("over two plain lines", "k: one\n  two ${{ bogus() }}\nl: x\n", 2, "  two ${{ bogus() }}", "bogus"),
    ("in double quotes", 'k: "one\n\n  two ${{ bogus() }}"\n', 3, '  two ${{ bogus() }}"', "bogus"),
    (
        "escaped, it stands where the scalar begins",
        'k: "one\\n\\x24{{ bogus() }}"\n',
        1,
        "one\n${{ bogus() }}",
        "bogus",
    ),
    # The text of the expression may stand elsewhere too, as a word of the script or as a part of another one.
    ("not the word before it", "k: |\n  nope\n  ${{ nope }}\n", 3, "  ${{ nope }}", "unknown context 'nope'"),
    ("not the longer one before it", "k: |\n  ${{ env.A }}\n  ${{ env.B.( }}\n", 3, "  ${{ env.B.( }}", "unexpected"),
    (
        "the second of a line",
        "k: |\n  x\n  ${{ env.A }} ${{ env.A( }}\n",
        3,
        "  ${{ env.A }} ${{ env.A( }}",
        "unexpected",
    ),
    # An expression over several lines: the line of the refused part.
    ("over lines", "k: |\n  ${{ env.A ||\n      env.B ||\n      bogus() }}\n", 4, "      bogus() }}", "bogus"),
    ("over lines, the first", "k: |\n  x ${{ bogus() ||\n      env.B }}\n", 2, "  x ${{ bogus() ||", "bogus"),
    ("over folded lines", "k: >-\n  ${{ env.A ||\n  env.B ||\n  bogus() }}\n", 4, "  bogus() }}", "bogus"),
    ("not closed", "k: |\n  a\n  b ${{ env.A\n  c\n", 3, "  b ${{ env.A", "not closed"),
    ("empty", "k: |\n  a\n  b ${{ }}\n", 3, "  b ${{ }}", "an expression was expected"),
    # Found only while evaluating.
    ("a function's refusal", "k: |\n  a\n  ${{ fromJson('{') }}\n", 3, "  ${{ fromJson('{') }}", "fromJSON: not JSON"),
    ("unicode and brackets", "k: |\n  é [x] (y) $z\n  测 ${{ nope[0].* }}\n", 3, "  测 ${{ nope[0].* }}", "nope"),
]


@pytest.mark.parametrize(("text", "line", "shown", "message"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
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
