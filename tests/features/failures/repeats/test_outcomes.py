"""What the outcomes of a row's repetitions say together: the interval, the word, and whether another is worth it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.features.failures.repeats.outcomes import (
    EQUAL_FAILURES,
    MAX_INCONCLUSIVE,
    RepeatLimit,
    RepetitionOutcome,
    count_outcomes,
    outcome,
    status,
    stop_reason,
    wilson,
)
from ci_tasks.records import RunRecord, Triage

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


# R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I,
# the score method without continuity correction.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_the_published_one(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


proportions = st.integers(0, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(proportions)
def test_the_interval_holds_the_rate_that_was_seen(proportion: tuple[int, int]) -> None:
    successes, n = proportion
    low, high = wilson(successes, n)
    assert 0 <= low < high <= 1
    assert n == 0 or low <= successes / n <= high
    assert (low == 0) == (successes == 0)
    assert (high == 1) == (successes == n)


@given(proportions)
def test_failures_and_passes_mirror_each_other(proportion: tuple[int, int]) -> None:
    successes, n = proportion
    low, high = wilson(successes, n)
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low))


@given(proportions, st.integers(2, 5))
def test_more_tries_of_the_same_rate_and_less_certainty_make_it_narrower(
    proportion: tuple[int, int], times: int
) -> None:
    successes, n = proportion
    low, high = wilson(successes, n)
    more_low, more_high = wilson(successes * times, n * times)
    surer_low, surer_high = wilson(successes, n, z=2.58)
    assert more_high - more_low <= high - low <= surer_high - surer_low


@pytest.mark.parametrize(("successes", "n", "z"), [(-1, 3, 1.96), (4, 3, 1.96), (0, -1, 1.96), (1, 3, 0)])
def test_no_such_proportion_is_an_error(successes: int, n: int, z: float) -> None:
    with pytest.raises(ValueError, match="no such proportion"):
        wilson(successes, n, z)


@pytest.mark.parametrize(
    ("status", "signature", "expected"),
    [
        ("passed", None, RepetitionOutcome("passed")),
        ("failed", "KeyError#1a", RepetitionOutcome("failed", "KeyError#1a")),
        ("failed", "", RepetitionOutcome("failed")),
        ("failed", None, RepetitionOutcome("failed")),
        # A log may end in a traceback although the environment was to blame, or the row passed.
        ("blocked", "HTTPError: 429#3c", RepetitionOutcome("blocked")),
        ("passed", "KeyError#1a", RepetitionOutcome("passed")),
    ],
)
def test_a_record_says_how_its_repetition_ended(
    status: str, signature: str | None, expected: RepetitionOutcome
) -> None:
    triage = None if signature is None else Triage("x", "failed", 1, "line", signature, 0.9)
    assert outcome(RunRecord("b.01", "l", "r", "h", status, triage=triage)) == expected


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
WORDS = {
    "": "unclear",
    "BCL": "unclear",
    ".": "passes",
    ".B.....": "passes",
    ".a": "flaky",
    "aaaaaaaaaa.": "flaky",
    ".v": "flaky",
    "ab": "flaky",  # it fails in two ways
    "aaaaab": "flaky",
    "a": "unclear",
    "aaaa": "unclear",
    "aaaaa": "deterministic",
    "aaBaaCa": "deterministic",
    "fffff": "deterministic",
    "vvvvv": "deterministic",
}


@pytest.mark.parametrize("letters", WORDS)
def test_each_history_has_its_word(letters: str) -> None:
    assert count_outcomes(outcomes_of(letters)).classification == WORDS[letters]


def test_the_number_of_equal_failures_follows_from_the_bound() -> None:
    assert EQUAL_FAILURES == 5
    assert MAX_INCONCLUSIVE == 2


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
