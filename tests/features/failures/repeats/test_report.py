"""Repetitions as text, to the character. The counts are the judge's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.features.failures.repeats.outcomes import EQUAL_FAILURES, OutcomeCounts, RepetitionOutcome, count_outcomes
from ci_tasks.features.failures.repeats.report import (
    Example,
    RepeatedRow,
    announcement,
    progress,
    results,
    short,
    summary,
)

CAUSE, OTHER = "RuntimeError: the cause#3f9a1c", "torch.OutOfMemoryError: CUDA out of memory#2b7d00"


def counts(passed: int, *signatures: str, blocked: int = 0) -> OutcomeCounts:
    failed = [RepetitionOutcome("failed", signature) for signature in signatures]
    return count_outcomes([*[RepetitionOutcome("passed")] * passed, *failed, *[RepetitionOutcome("blocked")] * blocked])


def test_the_first_line_says_what_runs_and_how_long_it_may_take() -> None:
    clean = Checkout("/c", "c0" * 20, "7e" * 20, head="c0" * 20)
    assert announcement(20, False, clean) == (
        "repeating each row 20 times, or until the answer is clear: c0c0c0c, tree 7e7e7e7e7e7e"
    )
    assert announcement(100, True, replace(clean, dirty=("a.py",))) == (
        "repeating until a row fails, at most 100 times: c0c0c0c + 1 changed file, tree 7e7e7e7e7e7e"
    )
    assert "2 changed files" in announcement(100, True, replace(clean, dirty=("a.py", "b.py")))


@pytest.mark.parametrize(
    ("ended", "so_far", "line"),
    [
        ({"ppo": "passed"}, [counts(3)], "repetition 3: passed; so far 3 passed, 0 failed"),
        ({"ppo": CAUSE}, [counts(2, CAUSE)], f"repetition 3: {CAUSE}; so far 2 passed, 1 failed"),
        ({"ppo": "blocked"}, [counts(2, blocked=1)], "repetition 3: blocked; so far 2 passed, 0 failed, 1 not counted"),
        ({"ppo": "passed", "dense": "passed", "moe": CAUSE}, [counts(3), counts(3), counts(2, CAUSE)],
         f"repetition 3: 2 passed, moe: {CAUSE}; so far 8 passed, 1 failed"),
        ({"a": CAUSE, "b": OTHER, "c": "blocked"}, [counts(0, CAUSE), counts(0, OTHER), counts(0, blocked=1)],
         f"repetition 3: a: {CAUSE}, b: {OTHER} and 1 more; so far 0 passed, 2 failed, 1 not counted"),
        ({"ppo": "\x1b[2Jboo"}, [counts(0, "x")], "repetition 3: �[2Jboo; so far 0 passed, 1 failed"),
    ],
)  # fmt: skip
def test_a_repetition_is_one_line(ended: dict[str, str], so_far: list[OutcomeCounts], line: str) -> None:
    assert progress(3, ended, so_far) == line


def test_a_long_signature_keeps_its_beginning_and_its_end() -> None:
    long = "ValueError: " + "x" * 99 + "#3f9a1c"
    shown = [CAUSE, "two lines#1a", "ValueError: " + "x" * 34 + "…" + "x" * 16 + "#3f9a1c"]
    assert [short(signature) for signature in (CAUSE, "two\n  lines#1a", long)] == shown


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


@pytest.mark.parametrize(
    ("tally", "why"),
    [
        (counts(2, CAUSE), "passes and fails, on one tree"),
        (counts(0, CAUSE, OTHER), "fails in 2 ways, on one tree"),
        (counts(0, CAUSE, CAUSE), "2 of 2 failed in one way: more repeats (5 such are clear)"),
        (counts(1), "0 of 1 failed: the true rate is below 79 % (95 %)"),
    ],
)
def test_each_word_comes_with_its_evidence(tally: OutcomeCounts, why: str) -> None:
    assert results([RepeatedRow("ppo", tally)], EQUAL_FAILURES)[1].endswith(why)


def test_what_others_wrote_does_not_move_the_cursor() -> None:
    rows = [RepeatedRow("p\x1bpo", counts(0, "\x1b[2J#1a"), "", {"\x1b[2J#1a": Example("\x1b[2J", "/l")})]
    assert "\x1b" not in "".join(results(rows, EQUAL_FAILURES))
