"""QueryAnswers as they were recorded, and what a fact makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor.check_results import CheckResult
from ci_tasks.features.doctor.host_fact import HostFact

DATA = Path(__file__).parent / "data"
Read = Callable[[Sequence[HostFact], Mapping[str, QueryAnswer]], list[CheckResult]]


@pytest.fixture
def data() -> Callable[[str], str]:
    """The text of a file in tests/features/doctor/data."""
    return lambda name: (DATA / name).read_text(encoding="utf-8")


@pytest.fixture
def read() -> Read:
    """The results of facts whose questions were answered so; a question without an answer fails the test, unless it
    is put to a program that is not there."""

    def results(facts: Sequence[HostFact], answers: Mapping[str, QueryAnswer]) -> list[CheckResult]:
        missing = {
            name: QueryAnswer(None, "", f"{argv[0]}: not there") for f in facts for name, argv in f.queries.items()
        }
        return [result for fact in facts for result in fact.parse({**missing, **answers})]

    return results
