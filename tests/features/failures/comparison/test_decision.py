"""What the runs of two trees show, and how often that is wrong, computed exactly."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest

from ci_tasks.features.failures.comparison import decision as rule
from ci_tasks.features.failures.comparison.decision import ComparisonVerdict, RunSides, next_decision, verdict_of
from ci_tasks.features.failures.repeats.outcomes import OutcomeCounts, RepetitionOutcome

LETTERS = {
    ".": RepetitionOutcome("passed"),
    "a": RepetitionOutcome("failed", "KeyError: 'loss'#1a"),
    "b": RepetitionOutcome("failed", "ValueError#2b"),
    "c": RepetitionOutcome("failed", "TypeError#3c"),
    "B": RepetitionOutcome("blocked"),
    **{
        digit: RepetitionOutcome("failed", f"ValueError at step {digit}#{digit}", "ValueError")
        for digit in "0123456789"
    },
}


def outcomes_of(letters: str) -> list[RepetitionOutcome]:
    return [LETTERS[letter] for letter in letters]


# name, the base's runs, yours → the word, or the sides to run next
CASES = [
    ("at first both", "", "", "base yours"),
    ("the other half of a pair", "", "a", "base"),
    ("what the history has is not run again", ".....", "aa", "yours"),
    ("three failures of yours alone", "...", "aaa", "yours!"),
    ("three failures of the base alone", "aaa", "...", "fixed"),
    ("both always", "aaaaa", "aaaaa", "already broken"),
    ("never", ".....", ".....", "fine"),
    ("both now and then", "..a..a..a.", "a.....a..a", "flaky"),
    ("yours alone, seldom", "..........", "...a......", "base yours"),
    ("both always, in two ways, clearly", "aaaaa", "bbbbb", "yours!"),
    ("both always, never in the same way", "a" * 6, "b" * 3 + "c" * 3, "base yours"),
    ("both always, with evidence that varies", "01234", "56789", "already broken"),
    ("both always, with evidence of their own", "00000", "11111", "yours!"),
    ("the base is blocked", ".BB", "a", "blocked"),
]


@pytest.mark.parametrize(("base", "yours", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_runs_decide_what_is_next(base: str, yours: str, expected: str) -> None:
    decision = next_decision(outcomes_of(base), outcomes_of(yours))
    shown = " ".join(decision.sides) if isinstance(decision, RunSides) else decision.word
    assert shown == expected.rstrip("!")
    assert isinstance(decision, ComparisonVerdict) == (
        expected[-1] == "!" or (expected in rule.EXIT_CODES and expected != "yours")
    )


@cache
def word(base: int, yours: int, pairs: int) -> str:
    both = (OutcomeCounts(pairs - failed, {"a": failed} if failed else {}, {}) for failed in (base, yours))
    verdict = verdict_of(*both)
    return verdict.word if verdict else ""


def words(base: float, yours: float, pairs: int) -> dict[str, float]:
    """Word → its exact probability for rows that fail at these rates, with at most so many pairs."""
    undecided, ended = {(0, 0): 1.0}, defaultdict[str, float](float)
    steps = [(b, y, (base if b else 1 - base) * (yours if y else 1 - yours)) for b in (0, 1) for y in (0, 1)]
    for pair in range(1, pairs + 1):
        after = defaultdict[tuple[int, int], float](float)
        for (b, y), chance in undecided.items():
            for more_b, more_y, share in steps:
                after[b + more_b, y + more_y] += chance * share
        undecided = {}
        for (b, y), chance in after.items():
            if named := word(b, y, pair):
                ended[named] += chance
            elif chance > 1e-9:
                undecided[b, y] = chance
    return ended


@pytest.mark.parametrize("pairs", [10, rule.MOST_PAIRS])
def test_few_words_are_wrong(pairs: int) -> None:
    """Of equal rates few are called yours or fixed, and a rise is seldom called anything but yours."""
    for rate in (0.05, 0.2, 0.4, 0.5, 0.6, 0.9):
        ended = words(rate, rate, pairs)
        assert ended["yours"] + ended["fixed"] <= rule.ERROR, rate
    for rate in (0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5):
        ended = words(rate, rate + rule.RISE, pairs)
        assert sum(ended.values()) - ended["yours"] <= rule.ERROR, rate


def test_a_plain_regression_is_found() -> None:
    assert words(0.0, 1.0, 3)["yours"] == 1
    assert words(0.05, 0.8, 10)["yours"] > 0.8
    assert words(1.0, 0.0, 3)["fixed"] == 1
    assert words(0.9, 0.0, 10)["fixed"] > 0.7
