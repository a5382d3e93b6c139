"""What labels and rows are called, and what any workflow's matrix entries say to the generic suite."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.workflow.suite import GENERIC, plain_names
from tests.parts.entries import describe


@pytest.mark.parametrize(
    ("entry", "gpus"),
    [
        ({"num_gpus": 2, "python": "3.12"}, 2),
        ({"gpus": "4"}, 4),
        ({"info": {"num_gpus": 8, "level": 1}}, 8),
        ({"gpu-count": 4}, 4),
        ({"n_gpus": 2}, 2),
        ({"gpu_num": "gpu_num_4"}, 4),
        # Unknown is a value.
        ({"num_gpus": "many"}, None),
        ({"python": "3.12"}, None),
        ({"info": "word"}, None),
        ({}, None),
    ],
)
def test_an_entry_says_how_many_gpus_it_wants_and_no_test_is_guessed(entry: dict[str, Any], gpus: int | None) -> None:
    assert GENERIC.describe(entry) == (None, "", gpus)


# -- names -------------------------------------------------------------------------------------------------------------


# matrix → names; None where names cannot be known without evaluating
CASES: list[tuple[Any, list[str] | None]] = [
    # no matrix: one row, called as the label
    (None, ["label"]),
    # slime's shape, in its order
    ({"info": [{"test_file": "test_a.py"}, {"test_file": "x/test_b.py", "test_args": "--m 1"}]}, ["a", "b[m-1]"]),
    # one file twice: names are made unique
    ({"info": [{"test_file": "test_a.py"}, {"test_file": "test_a.py"}]}, ["a", "a#2"]),
    # any other matrix: its values, first key slowest
    ({"x": [1, 2], "y": [True]}, ["label[1-true]", "label[2-true]"]),
    # what needs GitHub's own rules is left to them
    ({"x": [1], "include": [{"x": 2}]}, None),
    ({"x": [1], "exclude": [{"x": 1}]}, None),
    ({"x": ["${{ github.sha }}"]}, None),
    ({"x": "${{ fromJSON('[1]') }}"}, None),
    ("${{ fromJSON('{}') }}", None),
    ({}, None),
]


@pytest.mark.parametrize(("matrix", "names"), CASES)
def test_plain_matrices_are_named_and_others_are_not_guessed(matrix: Any, names: list[str] | None) -> None:
    assert plain_names("label", matrix, describe) == names


def test_a_name_is_one_line_that_a_terminal_may_have() -> None:
    assert plain_names("l", {"a": ["\x1b[31mred", "two\nlines"]}, describe) == ["l[�[31mred]", "l[two lines]"]
    assert plain_names("l", {"info": [{"test_file": "test_\x1b]0;x\x07.py"}]}, describe) == ["�]0;x�"]
