"""What a step writes into $GITHUB_OUTPUT, read as GitHub reads it."""

from __future__ import annotations

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.shell import parse_outputs


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("", {}),
        ("a=1\n", {"a": "1"}),
        ("a=1", {"a": "1"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("a=\n\nb=2\n", {"a": "", "b": "2"}),
        # The first = divides, and a << behind it is text.
        ("a=b=c\n", {"a": "b=c"}),
        ("a=x<<EOF\n", {"a": "x<<EOF"}),
        ('matrix={"info":[{"n":1}]}\n', {"matrix": '{"info":[{"n":1}]}'}),
        # A later line of the same name wins.
        ("a=1\na=2\n", {"a": "2"}),
        # Blocks: lines as they are, the end alone on its line; an = in the end's name does no harm.
        ("a<<EOF\none\n\n two=2\nEOF\nb=3\n", {"a": "one\n\n two=2", "b": "3"}),
        ("a<<EOF\nEOF\n", {"a": ""}),
        ("a<<E=F\nx\nE=F\n", {"a": "x"}),
        ("a<<EOF\nEOF2\nEOF\n", {"a": "EOF2"}),
        # Only \n and \r\n end a line.
        ("a=one\u2028two\x0bthree\n", {"a": "one\u2028two\x0bthree"}),
    ],
)
def test_outputs_are_lines_and_blocks(text: str, outputs: dict[str, str]) -> None:
    assert parse_outputs(text) == outputs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("word\n", "neither `name=value` nor `name<<END`\n    word"),
        ("=1\n", "neither"),
        ("a<<EOF\none\n", "no line 'EOF', which ends a block"),
    ],
)
def test_what_makes_github_fail_the_step_is_an_error(text: str, message: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        parse_outputs(text)
    assert message in str(caught.value)
