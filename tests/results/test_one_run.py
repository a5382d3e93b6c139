"""A command for one row: what `last` means after a command with several."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.records import RunRecord
from ci_tasks.results.load import RUNS, choose


def _records(*statuses: str) -> dict[str, RunRecord]:
    ids = {f"b.{number:02d}": status for number, status in enumerate(statuses, 1)}
    return {id: RunRecord(id, "l", f"row{int(id[2:])}", "sim", status) for id, status in ids.items()}


@pytest.mark.parametrize(
    ("statuses", "listed"), [("passed passed", [1, 2]), ("passed running", [1, 2]), ("passed failed blocked", [2, 3])]
)
def test_otherwise_those_that_may_be_meant_are_listed(statuses: str, listed: list[int]) -> None:
    names = statuses.split()
    with pytest.raises(UsageError) as caught:
        choose("last", _records(*names))
    assert caught.value.message == f"'last' has {len(names)} rows; pick one"
    shown = [line.strip() for line in caught.value.hint.splitlines()]
    assert shown == [f"ci-tasks COMMAND b.{number:02d}  {names[number - 1]}  row{number}" for number in listed]


def test_a_hang_is_looked_for_in_the_only_run_that_runs() -> None:
    assert choose("last", _records("failed", "running", "passed"), RUNS) == "b.02"


def test_of_many_the_first_are_listed() -> None:
    with pytest.raises(UsageError) as caught:
        choose("last", _records(*["failed"] * 20))
    assert caught.value.hint.splitlines()[-1] == "  and 8 more: `ci-tasks runs`"
