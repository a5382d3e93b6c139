"""What labels and rows are called, and what any workflow's matrix entries say to the generic suite."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.workflow.suite import GENERIC, plain_names
from tests.parts.cases import cases
from tests.parts.entries import describe

CASES = cases("workflow/data/suite.yaml")


@pytest.mark.parametrize(("entry", "gpus"), CASES["an entry says how many gpus it wants and no test is guessed"])
def test_an_entry_says_how_many_gpus_it_wants_and_no_test_is_guessed(entry: dict[str, Any], gpus: int | None) -> None:
    assert GENERIC.describe(entry) == (None, "", gpus)


# -- names -------------------------------------------------------------------------------------------------------------


# None where names cannot be known without evaluating
@pytest.mark.parametrize(("matrix", "names"), CASES["plain matrices are named and others are not guessed"])
def test_plain_matrices_are_named_and_others_are_not_guessed(matrix: Any, names: list[str] | None) -> None:
    assert plain_names("label", matrix, describe) == names


def test_a_name_is_one_line_that_a_terminal_may_have() -> None:
    assert plain_names("l", {"a": ["\x1b[31mred", "two\nlines"]}, describe) == ["l[�[31mred]", "l[two lines]"]
    assert plain_names("l", {"info": [{"test_file": "test_\x1b]0;x\x07.py"}]}, describe) == ["�]0;x�"]
