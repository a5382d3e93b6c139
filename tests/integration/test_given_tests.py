"""`--test FILE::NAME`: which rows it means, and that they run that test alone."""

from __future__ import annotations

from typing import Any

import pytest

ONE = "tests/test_rewards.py::test_a_wrong_answer_earns_nothing"


@pytest.mark.timeout(300)
def test_only_rows_that_run_its_file_run_and_they_run_it_alone(person: Any, index: dict[str, str]) -> None:
    person.use_index(index)
    ran = person.ci_tasks("run", "cpu-unittest", "--test", ONE)
    assert [(row["row"], row["evidence"]["tests"]) for row in person.records()] == [("rewards", 1)], ran.out


def test_a_file_that_no_row_runs_is_an_error_that_names_those_that_do(person: Any) -> None:
    refused = person.ci_tasks("run", "cpu-unittest", "--test", "tests/test_none.py::test_x")
    assert refused.code == 2 and "no row of cpu-unittest runs tests/test_none.py" in refused.err
    assert "tests/test_rewards.py" in refused.err


def test_last_failed_without_an_earlier_run_says_so(person: Any) -> None:
    refused = person.ci_tasks("run", "cpu-unittest", "--last-failed")
    assert (refused.code, "there is no earlier run of cpu-unittest" in refused.err) == (2, True)
