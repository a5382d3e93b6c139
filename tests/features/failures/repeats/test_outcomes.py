"""What the outcomes of a row's repetitions say together: the interval, the word, and whether another is worth it."""

from __future__ import annotations

import pytest

from ci_tasks.features.failures.repeats.outcomes import RepeatLimit, RepetitionOutcome, count_outcomes, stop_reason
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
    ("passes are never enough before N", "." * 19, N, ""),
    ("blocked ones are made up for", "B" + "." * 19, N, ""),
    ("flaky is proven, its rate is not known", ".a", N, ""),
    ("a known rate", MIXED, RepeatLimit(200), "the rate is known to ±10 points"),
    ("in vain for two reasons", "..BL", N, "lost 2 times in a row"),
    ("hunting, blocked", ".BB", HUNT, "blocked 2 times in a row"),
]


@pytest.mark.parametrize(("letters", "limit", "why"), [row[1:] for row in OVER], ids=[row[0] for row in OVER])
def test_a_row_is_repeated_as_long_as_the_next_one_is_worth_its_time(
    letters: str, limit: RepeatLimit, why: str
) -> None:
    assert stop_reason(outcomes_of(letters), limit) == why
