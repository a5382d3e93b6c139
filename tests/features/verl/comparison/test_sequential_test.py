"""When pairs of trainings show that the candidate learns as well as its base, and how often that is wrong."""

from __future__ import annotations

import random

import pytest

from ci_tasks.features.verl.comparison.sequential_test import (
    CONTRADICTED,
    ERROR,
    FEWEST_PAIRS,
    GO_ON,
    MARGIN,
    NOT_SEEN,
    SHOWN,
    PairScore,
    decide,
    error_of_look,
    score,
)


def pairs(*differences: float, noise: float = 0.004, gain: float = 0.2) -> list[PairScore]:
    """Pairs whose base is at another level each time, as with other seeds."""
    return [
        PairScore(0.5 + at / 100, 0.5 + at / 100 + difference, noise, gain + difference, noise)
        for at, difference in enumerate(differences)
    ]


@pytest.mark.parametrize(
    ("given", "planned", "outcome"),
    [
        (pairs(0.0, 0.0), 5, GO_ON),
        (pairs(0.002, -0.002, 0.001), 3, SHOWN),
        (pairs(-0.10, -0.11, -0.09), 3, CONTRADICTED),
        (pairs(-0.02, -0.021, -0.02, -0.019, -0.02), 5, CONTRADICTED),  # less than the margin, but surely below
        (pairs(0.08, -0.07, 0.02, -0.05, 0.04), 5, NOT_SEEN),
        (pairs(0.08, -0.07, 0.02), 5, GO_ON),
        # Neither learns: alike, and worth nothing.
        (pairs(0.002, -0.002, 0.001, gain=0.0), 3, NOT_SEEN),
        # A repetition or two have no scatter.
        (pairs(0.0, 0.0), 2, NOT_SEEN),
        # Differences that are alike by chance, of steps that scatter widely.
        (pairs(0.0, 0.0, 0.0, noise=0.1), 3, NOT_SEEN),
        # Seeds without an effect: three times the same pair.
        ([PairScore(0.5, 0.49, 0.001, 0.2, 0.001)] * 3, 3, NOT_SEEN),
        ([PairScore(0.5, 0.5, 0.0, 0.2, 0.001)] * 3, 3, SHOWN),
    ],
)
def test_what_pairs_show(given: list[PairScore], planned: int, outcome: str) -> None:
    assert decide(given, planned).outcome == outcome


@pytest.mark.parametrize("planned", [3, 4, 8, 20])
def test_all_looks_together_may_err_as_often_as_promised(planned: int) -> None:
    assert sum(error_of_look(pair, planned) for pair in range(FEWEST_PAIRS, planned + 1)) == pytest.approx(ERROR)


@pytest.mark.parametrize(("drop", "wrong"), [(MARGIN, SHOWN), (0.0, CONTRADICTED)])
def test_a_wrong_word_is_as_rare_as_promised(drop: float, wrong: str) -> None:
    """At the edge of the hypothesis, with noise of an unknown size; bench/verl_comparison.py has whole curves."""
    chance = random.Random(3)
    count, runs = 0, 500
    for _ in range(runs):
        given: list[PairScore] = []
        while not (decision := decide(given, 5)).outcome:
            level = chance.gauss(0.5, 0.05)
            given.append(PairScore(level, level - drop + chance.gauss(0, 0.02), 0.005, 0.2, 0.005))
        count += decision.outcome == wrong
    assert count / runs <= ERROR + 2 * (ERROR * (1 - ERROR) / runs) ** 0.5


def test_a_score_is_of_the_last_half_of_the_steps_that_both_sides_have() -> None:
    base = [(step, 0.1 if step <= 5 else 0.4) for step in range(1, 11)]
    candidate = [(step, 0.1 if step <= 5 else 0.3) for step in range(1, 13)]
    found = score(base, candidate)
    assert found is not None
    assert (found.base, found.candidate) == pytest.approx((0.4, 0.3))
    assert (found.difference, found.gain) == pytest.approx((-0.1, 0.2))
