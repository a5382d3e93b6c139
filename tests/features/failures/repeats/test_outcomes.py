"""What the outcomes of a row's repetitions say together: the interval, the word, and whether another is worth it."""

from __future__ import annotations

import pytest

from ci_tasks.features.failures.repeats.outcomes import (
    RepeatLimit,
    RepetitionOutcome,
    count_outcomes,
    outcome,
    status,
    stop_reason,
)
from ci_tasks.records import RunRecord, Triage
from ci_tasks.results.rates import wilson

LETTERS = {
    ".": RepetitionOutcome("passed"),
    "a": RepetitionOutcome("failed", "KeyError: 'loss'#1a"),
    "b": RepetitionOutcome("failed", "torch.OutOfMemoryError: CUDA out of memory#2b"),
    "f": RepetitionOutcome("failed"),
    "v": RepetitionOutcome("vacuous"),
    "B": RepetitionOutcome("blocked"),
    "C": RepetitionOutcome("cancelled"),
    "L": RepetitionOutcome("lost"),
}


def outcomes_of(letters: str) -> list[RepetitionOutcome]:
    return [LETTERS[letter] for letter in letters]


@pytest.mark.parametrize(
    ("status", "signature"), [("passed", None), ("failed", "KeyError#1a"), ("failed", ""), ("failed", None)]
)
def test_a_record_says_how_its_repetition_ended(status: str, signature: str | None) -> None:
    def ended(status: str, signature: str | None) -> RepetitionOutcome:
        triage = None if signature is None else Triage("x", "failed", 1, "line", signature, 0.9)
        return outcome(RunRecord("b.01", "l", "r", "h", status, triage=triage))

    assert ended(status, signature) == RepetitionOutcome(status, signature or "")
    # A log may end in a traceback although the environment was to blame, or the row passed.
    assert [ended(other, "KeyError#1a").signature for other in ("blocked", "passed")] == ["", ""]


def test_a_tally_counts_failures_by_way_and_apart_what_is_no_evidence() -> None:
    counts = count_outcomes(outcomes_of("a.Bbb.fvLB"))
    assert (counts.passed, counts.failed, counts.conclusive) == (2, 5, 7)
    assert list(counts.failures.items()) == [
        ("torch.OutOfMemoryError: CUDA out of memory#2b", 2),
        ("KeyError: 'loss'#1a", 1),
        ("failed, without a signature", 1),
        ("vacuous", 1),
    ]
    assert counts.inconclusive == {"blocked": 2, "lost": 1}
    assert counts.interval == wilson(5, 7)


# what was seen → the word
# the word → what was seen
WORDS = {
    "unclear": ["", "BCL", "a", "aaaa"],
    "passes": [".", ".B....."],
    "flaky": [".a", "aaaaaaaaaa.", ".v", "ab", "aaaaab"],  # also if it fails in two ways
    "fails at least 56 %": ["aaaaa", "aaBaaCa", "fffff", "vvvvv"],
    "fails at least 72 %": ["aaaaaaaaaa"],
}


def test_each_history_has_its_word() -> None:
    for word, histories in WORDS.items():
        assert [count_outcomes(outcomes_of(letters)).word for letters in histories] == [word] * len(histories)


N = RepeatLimit(20)
HUNT = RepeatLimit(20, until_fail=True)
MIXED = ".a" * 46 + "."  # of 93 repetitions with a rate of 1/2, the interval is less than 20 points wide
OVER = [
    ("at first", "", N, ""),
    ("passes are never enough before N", "." * 19, N, ""),
    ("N passes", "." * 20, N, "all done"),
    ("blocked ones are made up for", "B" + "." * 19, N, ""),
    ("blocked ones were made up for", "B" + "." * 20, N, "all done"),
    ("flaky is proven, its rate is not known", ".a", N, ""),
    ("a known rate", MIXED, RepeatLimit(200), "the rate is known to ±10 points"),
    ("a rate not quite known", MIXED[:-1], RepeatLimit(200), ""),
    ("a few equal failures", "aaaa", N, ""),
    ("enough equal failures", "aaaaa", N, "5 equal failures are clear"),
    ("unequal failures", "aaaab", N, ""),
    ("fewer were asked for", "aaa", RepeatLimit(3), "all done"),
    ("blocked once", "..B", N, ""),
    ("blocked twice", "..BB", N, "blocked 2 times in a row"),
    ("in vain for two reasons", "..BL", N, "lost 2 times in a row"),
    ("blocked twice, not in a row", "B.B.", N, ""),
    ("hunting, none yet", "." * 19, HUNT, ""),
    ("hunting, found", ".a", HUNT, "it failed"),
    ("hunting, in vain", "." * 20, HUNT, "all done"),
    ("hunting, blocked", ".BB", HUNT, "blocked 2 times in a row"),
]


@pytest.mark.parametrize(("letters", "limit", "why"), [row[1:] for row in OVER], ids=[row[0] for row in OVER])
def test_a_row_is_repeated_as_long_as_the_next_one_is_worth_its_time(
    letters: str, limit: RepeatLimit, why: str
) -> None:
    assert stop_reason(outcomes_of(letters), limit) == why


STATUSES = [
    ("every one passed", "...", "passed"),
    ("a blocked one was made up for", ".B..", "passed"),
    ("one failed", "..a", "failed"),
    ("nothing ran its tests", "vvv", "failed"),
    ("failed, then blocked", ".aBB", "failed"),
    ("given up after a pass", ".BB", "blocked"),
    ("nothing but blocked", "BB", "blocked"),
    ("lost at last", "BL", "lost"),
    ("not all of N, as another row ended it", "..", "passed"),
]


@pytest.mark.parametrize(("letters", "expected"), [row[1:] for row in STATUSES], ids=[row[0] for row in STATUSES])
def test_the_repetitions_of_a_row_have_one_status(letters: str, expected: str) -> None:
    assert status(outcomes_of(letters), RepeatLimit(3)) == expected
