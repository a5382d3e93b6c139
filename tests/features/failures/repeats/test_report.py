"""Repetitions as text, to the character. The counts are the judge's own."""

from __future__ import annotations

from ci_tasks.features.failures.repeats.outcomes import EQUAL_FAILURES, OutcomeCounts, RepetitionOutcome, count_outcomes
from ci_tasks.features.failures.repeats.report import Example, RepeatedRow, results


def counts(passed: int, *signatures: str, blocked: int = 0) -> OutcomeCounts:
    failed = [RepetitionOutcome("failed", signature) for signature in signatures]
    return count_outcomes([*[RepetitionOutcome("passed")] * passed, *failed, *[RepetitionOutcome("blocked")] * blocked])


def test_what_others_wrote_does_not_move_the_cursor() -> None:
    rows = [RepeatedRow("p\x1bpo", counts(0, "\x1b[2J#1a"), "", {"\x1b[2J#1a": Example("\x1b[2J", "/l")})]
    assert "\x1b" not in "".join(results(rows, EQUAL_FAILURES))
