"""Repetitions as text, to the character. The counts are the judge's own."""

from __future__ import annotations

from ci_tasks.features.failures.repeats.outcomes import EQUAL_FAILURES, OutcomeCounts, RepetitionOutcome, count_outcomes
from ci_tasks.features.failures.repeats.report import (
    Example,
    RepeatedRow,
    results,
    summary,
)

CAUSE, OTHER = "RuntimeError: the cause#3f9a1c", "torch.OutOfMemoryError: CUDA out of memory#2b7d00"


def counts(passed: int, *signatures: str, blocked: int = 0) -> OutcomeCounts:
    failed = [RepetitionOutcome("failed", signature) for signature in signatures]
    return count_outcomes([*[RepetitionOutcome("passed")] * passed, *failed, *[RepetitionOutcome("blocked")] * blocked])


def test_the_end_has_a_line_a_row_and_every_way_of_failing_with_its_log() -> None:
    rows = [
        RepeatedRow("ppo", counts(12, *[CAUSE] * 7, OTHER), "", {CAUSE: Example("RuntimeError:\tthe cause", "/l/7")}),
        RepeatedRow("dense", counts(0, *[CAUSE] * 5), "5 equal failures are clear", {CAUSE: Example("", "/l/5")}),
        RepeatedRow("moe", counts(20)),
        RepeatedRow("gone", counts(0, blocked=2), "blocked 2 times in a row", {"blocked": Example("no\nGPU", "")}),
    ]
    assert results(rows, EQUAL_FAILURES) == [
        "RESULT               ROW    PASSED  FAILED  FAILURE RATE (95 %)  WHY",
        "flaky                ppo    12      8       40 % (22–61 %)       passes, and fails in 2 ways, on one tree",
        "fails at least 56 %  dense  0       5       100 % (57–100 %)     "
        "5 of 5 failed in one way: it fails at least 56 % (95 %); stopped: 5 equal failures are clear",
        "passes               moe    20      0       0 % (0–16 %)         "
        "0 of 20 failed: the true rate is below 16 % (95 %)",
        "unclear              gone   0       0       -                    "
        "no repetition says anything about the code; stopped: blocked 2 times in a row",
        "",
        "failures of ppo:",
        f"  7 × {CAUSE}",
        "      RuntimeError: the cause",
        "      log: /l/7",
        f"  1 × {OTHER}",
        "",
        "failures of dense:",
        f"  5 × {CAUSE}",
        "      log: /l/5",
        "",
        "not counted of gone:  2 blocked, such as: no GPU",
    ]
    assert summary(rows) == "1 flaky, 1 fails at least 56 %, 1 passes, 1 unclear"


def test_what_others_wrote_does_not_move_the_cursor() -> None:
    rows = [RepeatedRow("p\x1bpo", counts(0, "\x1b[2J#1a"), "", {"\x1b[2J#1a": Example("\x1b[2J", "/l")})]
    assert "\x1b" not in "".join(results(rows, EQUAL_FAILURES))
