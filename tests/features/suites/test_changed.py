"""The rule for changed tests is that of CI's own script, file by file."""

from __future__ import annotations

import pytest

from ci_tasks.features.suites.changed import RULE, changed_matrix


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
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
    ],
)
def test_gpus_are_the_first_number_that_grep_would_find(text: str, gpus: int) -> None:
    assert RULE.gpus_of(text) == gpus


def test_a_matrix_entry_names_the_file_from_tests_and_its_gpus() -> None:
    files = {"tests/test_a.py": "NUM_GPUS = 2", "tests/plugin_contracts/test_b.py": ""}
    assert changed_matrix(files) == {
        "info": [{"test_file": "test_a.py", "num_gpus": 2}, {"test_file": "plugin_contracts/test_b.py", "num_gpus": 8}]
    }
