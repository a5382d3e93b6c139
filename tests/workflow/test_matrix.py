"""GitHub's rules for a matrix, each with the reason above its rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from ci_tasks.workflow.rows import expand
from tests.parts.cases import cases

CASES = cases("workflow/data/matrix.yaml")

# As YAML: a matrix, and its combinations.


@pytest.mark.parametrize(("matrix", "combinations"), CASES["a matrix has githubs combinations"])
def test_a_matrix_has_githubs_combinations(matrix: str, combinations: str) -> None:
    assert expand(yaml.safe_load(matrix)) == yaml.safe_load(combinations)


@pytest.mark.parametrize(("matrix", "message"), CASES["what github refuses is an error"])
def test_what_github_refuses_is_an_error(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        expand(matrix)
