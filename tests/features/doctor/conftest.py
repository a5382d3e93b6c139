"""Answers as they were recorded, and what a check makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor.check_results import Check, CheckResult
from ci_tasks.features.doctor.command import finished
from tests.parts.golden import Golden

HERE = (
    "test_the_script_measures_a_place_where_it_will_be_in_the_hosts_own_home",
    "test_a_lock_on_this_machine_is_found_with_its_holder",
)
whole = (kept := Golden(Path(__file__).parent / "data/results.json", HERE)).fixture()
finished = kept.of(finished)

DATA = Path(__file__).parent / "data"
Read = Callable[[Check, Mapping[str, QueryAnswer]], list[CheckResult]]


@pytest.fixture
def data() -> Callable[[str], str]:
    """The text of a file in tests/features/doctor/data."""
    return lambda name: (DATA / name).read_text(encoding="utf-8")


@pytest.fixture
def read() -> Read:
    """The results of a check whose queries were answered so; for a query without an answer its program is missing."""

    def results(check: Check, answers: Mapping[str, QueryAnswer]) -> list[CheckResult]:
        missing = {name: QueryAnswer(None, "", f"{argv[0]}: No such file") for name, argv in next(check).items()}
        return finished(check, {**missing, **answers})

    return results
