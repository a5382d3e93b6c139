"""What is learned of a row's runs, which values do not fit, where a mean changed, and where two runs part."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ci_tasks.features.numbers.bands import LEAST_RUNS, MOST_STEPS, counted, learn, marks, thinned
from ci_tasks.features.numbers.drift import drifts
from ci_tasks.features.numbers.exact import compare_exactly, lines_by_rank
from ci_tasks.features.numbers.result import Acceptance, ExactComparison, MetricPoint, Parting, RunNumbers
from ci_tasks.results.metrics import Points, Series, read_series


def run(at: int, *values: float, name: str = "reward", marked: bool = False) -> RunNumbers:
    points = tuple(MetricPoint(1, step, value) for step, value in enumerate(values, 1))
    return RunNumbers(f"r{at:02d}", f"2026-01-{at + 1:02d}", "8 x H100", {name: points}, marked)


SCATTERED = [run(at, 1.0 + 0.01 * (at % 3), 2.0 + 0.01 * (at % 2)) for at in range(10)]
EQUAL = [run(at, 1.0, 2.0) for at in range(LEAST_RUNS)]
MARKS: list[tuple[str, Sequence[RunNumbers], RunNumbers, list[str]]] = [
    ("within its band", SCATTERED, run(10, 1.011, 2.004), []),
    ("too few runs to know", SCATTERED[: LEAST_RUNS - 1], run(10, 9.0, 9.0), []),
    ("a step that no run had", SCATTERED, run(10, 1.0, 2.0, 99.0), []),
    ("a metric that no run had", SCATTERED, run(10, 99.0, name="loss"), []),
    (
        "low at one step",
        SCATTERED,
        run(10, 1.01, 1.5),
        ["reward at step 2 is 95.8 sigma low (1.5; 10 runs gave 2.005)"],
    ),
    (
        "no number any more",
        SCATTERED,
        run(10, math.nan, 2.0),
        ["reward at step 1 is nan; in all 10 runs before 1.009"],
    ),
    ("equal in all runs, and now by rounding", EQUAL, run(9, 1.0 + 1e-12, 2.0), []),
    (
        "equal in all runs, and now not",
        EQUAL,
        run(9, 1.0, 2.0001),
        ["reward at step 2 is 2.0001; in all 5 runs before 2"],
    ),
]


@pytest.mark.parametrize(("before", "new", "sentences"), [case[1:] for case in MARKS], ids=[case[0] for case in MARKS])
def test_a_value_outside_of_its_band_is_marked(
    before: Sequence[RunNumbers], new: RunNumbers, sentences: list[str]
) -> None:
    assert [mark.sentence for mark in marks(new, learn(before))] == sentences


def test_where_one_run_was_far_from_the_others_all_bands_are_as_wide() -> None:
    calm, wild = [run(at, 1.0 + 0.01 * (at % 3)) for at in range(10)], run(10, 1.5)
    assert marks(run(11, 1.4), learn(calm))
    assert not marks(run(11, 1.4), learn([*calm, wild]))


def test_a_run_that_did_not_fit_counts_only_once_it_is_accepted() -> None:
    runs = [run(0, 1.0), run(1, 1.0), run(2, 5.0, marked=True), run(3, 5.0, marked=True), run(4, 1.0)]
    assert [each.id for each in counted(runs, [])] == ["r00", "r01", "r04"]
    accepted = Acceptance("l", "row", "8 x H100", "r02", "somebody", "2026-01-03T12", "a new tokenizer")
    assert [each.id for each in counted(runs, [accepted])] == ["r02", "r04"]


def test_a_long_training_is_thinned_evenly_to_its_end() -> None:
    points = [MetricPoint(1, step, 0.0) for step in range(1000)]
    steps = [point.step for point in thinned(points)]
    assert len(steps) == MOST_STEPS and (steps[0], steps[-1]) == (0, 999)


def test_a_mean_that_changed_and_stayed_so_is_found_where_it_did() -> None:
    rng = random.Random(1)
    steady = [run(at, rng.gauss(1, 0.1)) for at in range(30)]
    assert drifts(steady) == ()
    (found,) = drifts([run(at, rng.gauss(1 if at < 18 else 0.5, 0.1)) for at in range(30)])
    assert (found.name, found.since, found.since_time) == ("reward", "r18", "2026-01-19")
    assert found.before == pytest.approx(1, abs=0.1) and found.after == pytest.approx(0.5, abs=0.1)


def series(*points: Points) -> tuple[Series, ...]:
    return (Series("loss", "train/loss", points),)


A, ONE_ULP = ((1, 0.5), (2, 0.7)), ((1, 0.5), (2, math.nextafter(0.7, 1)))
EXACT = [
    ("equal", {"": series(A)}, {"": series(A)}, 2, None),
    ("one ULP", {"": series(A)}, {"": series(ONE_ULP)}, 2, Parting("train/loss", "", 1, 2, 0.7, ONE_ULP[1][1])),
    (
        "the second training, after a restart",
        {"": series(A, A)},
        {"": series(A, ONE_ULP)},
        4,
        Parting("train/loss", "", 2, 2, 0.7, ONE_ULP[1][1]),
    ),
    (
        "the lowest rank of the earliest step",
        {"10": series(((1, 0.5),)), "3": series(((1, 0.5),)), "0": series(A)},
        {"10": series(((1, 0.6),)), "3": series(((1, 0.7),)), "0": series(ONE_ULP)},
        4,
        Parting("train/loss", "3", 1, 1, 0.5, 0.7),
    ),
    ("nothing in both", {"": series(A)}, {"0": series(A)}, 0, None),
]


@pytest.mark.parametrize(("old", "new", "compared", "first"), [case[1:] for case in EXACT], ids=[c[0] for c in EXACT])
def test_two_runs_part_at_a_step_and_rank(
    old: dict[str, tuple[Series, ...]], new: dict[str, tuple[Series, ...]], compared: int, first: Parting | None
) -> None:
    assert compare_exactly("a", old, "b", new) == ExactComparison("a", "b", compared, first)


def test_a_line_is_of_the_rank_that_stands_before_it() -> None:
    lines = [b"[rank1]: step 1: {'train/loss': 0.5}\n", b"step 1: {'train/loss': 0.25}\n", b"a word\n"]
    ranks = lines_by_rank(lines)
    assert sorted(ranks) == ["", "1"]
    assert [read_series(ranks[rank])[0].parts for rank in ("", "1")] == [(((1, 0.25),),), (((1, 0.5),),)]
