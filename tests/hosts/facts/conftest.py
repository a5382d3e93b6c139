"""Answers as they were recorded, and what a fact makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts.fact import Fact
from ci_tasks.report.doctor import Finding

DATA = Path(__file__).parent.parent / "data"
Read = Callable[[Sequence[Fact], Mapping[str, Answer]], list[Finding]]


@pytest.fixture
def data() -> Callable[[str], str]:
    """The text of a file in tests/hosts/data."""
    return lambda name: (DATA / name).read_text(encoding="utf-8")


@pytest.fixture
def read() -> Read:
    """The findings of facts whose questions were answered so; a question without an answer fails the test, unless it
    is put to a program that is not there."""

    def findings(facts: Sequence[Fact], answers: Mapping[str, Answer]) -> list[Finding]:
        missing = {name: Answer(None, "", f"{argv[0]}: not there") for f in facts for name, argv in f.questions.items()}
        return [finding for fact in facts for finding in fact.read({**missing, **answers})]

    return findings
