"""slime's conventions: what an entry of its matrix means."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.features.suites.slime import RULE, changed_matrix, describe
from ci_tasks.registry import suite_of
from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.reader import read

DESCRIBED: list[tuple[dict[str, Any], tuple[str | None, str, int | None]]] = [
    # A file is meant from tests/, unless it says so itself.
    ({"info": {"test_file": "test_a.py", "num_gpus": 8}}, ("tests/test_a.py", "", 8)),
    ({"info": {"test_file": "utils/test_a.py", "num_gpus": 0}}, ("tests/utils/test_a.py", "", 0)),
    ({"info": {"test_file": "tests/test_a.py", "num_gpus": 4}}, ("tests/test_a.py", "", 4)),
    # Arguments: in the file's string in old revisions, on their own since.
    ({"info": {"test_file": "test_a.py --async-save"}}, ("tests/test_a.py", "--async-save", None)),
    ({"info": {"test_file": "test_a.py", "test_args": "--a 1  --b"}}, ("tests/test_a.py", "--a 1  --b", None)),
    # Without `info`, as in older workflows of others.
    ({"test_file": "test_a.py", "num_gpus": "2"}, ("tests/test_a.py", "", 2)),
    # GPUs that are no number are unknown.
    ({"info": {"test_file": "a.py", "num_gpus": "many"}}, ("tests/a.py", "", None)),
    # Matrices that are not slime's.
    ({}, (None, "", None)),
    ({"python": "3.12", "num_gpus": 2}, (None, "", 2)),
    ({"info": {"test_file": ""}}, (None, "", None)),
]


@pytest.mark.parametrize(("combination", "described"), DESCRIBED)
def test_a_matrix_entry_names_a_test_its_arguments_and_its_gpus(combination: dict[str, Any], described: Any) -> None:
    assert describe(combination) == described


def read_matrix(matrix: str, path: str) -> Workflow:
    return read(f"on: push\njobs:\n  a: {{runs-on: x, steps: [{{run: x}}], strategy: {{matrix: {matrix}}}}}\n", path)


SUITES = [
    ("{x: [1]}", ".github/workflows/pr-test.yml", "slime"),
    ("{x: [1]}", ".github/workflows/pr-test.yml.j2", "slime"),
    ("{info: [{num_gpus: 1}, {test_file: a.py}]}", "w.yml", "slime"),
    ("{info: [{num_gpus: 1}]}", "w.yml", "generic"),
    ("{x: [test_file], include: [{x: 2}]}", "w.yml", "generic"),
    ("'${{ fromJSON(needs.a.outputs.b) }}'", "w.yml", "generic"),
]


@pytest.mark.parametrize(("matrix", "path", "suite"), SUITES)
def test_a_workflow_is_slimes_by_its_name_or_by_how_it_names_tests(matrix: str, path: str, suite: str) -> None:
    assert suite_of(read_matrix(matrix, path)).name == suite


# -- changed tests, as CI's own script finds them ----------------------------------------------------------------------


GREPS = [
    ("NUM_GPUS = 4\n", 4),
    ("import os\nNUM_GPUS=2\n", 2),
    ("NUM_GPUS = 4  # comment\r\n", 4),
    # The first one counts.
    ("NUM_GPUS = 4\nNUM_GPUS = 8\n", 4),
    # CI's default where there is no plain number at the beginning of a line.
    ("", 8),
    ("    NUM_GPUS = 4\n", 8),
    ("# NUM_GPUS = 4\n", 8),
    ("NUM_GPUS = N\n", 8),
    # grep sees one line at a time, and its digits are 0 to 9.
    ("NUM_GPUS =\n4\n", 8),
    ("NUM_GPUS = ٤\n", 8),
]


@pytest.mark.parametrize(("text", "gpus"), GREPS)
def test_gpus_are_the_first_number_that_grep_would_find(text: str, gpus: int) -> None:
    assert RULE.gpus_of(text) == gpus


def test_a_matrix_entry_names_the_file_from_tests_and_its_gpus() -> None:
    files = {"tests/test_a.py": "NUM_GPUS = 2", "tests/plugin_contracts/test_b.py": ""}
    assert changed_matrix(files) == {
        "info": [{"test_file": "test_a.py", "num_gpus": 2}, {"test_file": "plugin_contracts/test_b.py", "num_gpus": 8}]
    }
