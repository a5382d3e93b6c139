"""What a comparison of base and candidate says: differences first, then ends, then curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.config import Config
from ci_tasks.features.verl.comparison import report
from ci_tasks.features.verl.comparison.compare_levels import _Comparison, _learning
from ci_tasks.features.verl.comparison.observed_run import BASE, CANDIDATE, ObservedRun
from ci_tasks.features.verl.comparison.result import (
    LevelComparison,
    Pair,
    compared_run,
    differences,
    quantities,
    scores,
    verdict,
)
from ci_tasks.features.verl.comparison.sequential_test import decide

REWARD = "critic/rewards/mean"


def run(side: str, pair: int = 1, drop: float = 0.0, **more: Any) -> ObservedRun:
    points = [(step, 0.3 + 0.01 * step + 0.001 * ((step * (pair + 2)) % 5) - drop) for step in range(1, 21)]
    known = {
        "result": "Pass",
        "why": "it passed",
        "completed": True,
        "settings": {"level 5": {"a.lr": "1e-06", "seed": str(pair)}},
        "roles": {"level 5, critic": {"a.b": "1"}, f"level 5, {side}": {"c": "1"}},
        "curves": {REWARD: points, "timing_s/step": [(1, 90.0), (2, 10.0), (3, 11.0)]},
        "memory": {0: 40.0, 1: 41.0},
        "image": "sha256:1",
        "gpus": ("H200",),
        **more,
    }
    return ObservedRun(side, pair, f"{side}.{pair}", f"/runs/{side}{pair}", **known)


def three(**candidate: Any) -> list[Pair]:
    return [(run(BASE, pair), run(CANDIDATE, pair, **candidate)) for pair in (1, 2, 3)]


def concluded(pairs: list[Pair]) -> tuple[str, str]:
    return verdict(pairs, decide(scores(pairs), len(pairs)))


OTHER: dict[str, Mapping[str, Any]] = {
    "level 5: a.lr: base 1e-06, candidate 1e-05": {"settings": {"level 5": {"a.lr": "1e-05", "seed": "1"}}},
    "level 5: a.new: base none, candidate 3": {"settings": {"level 5": {"a.lr": "1e-06", "seed": "1", "a.new": "3"}}},
    "the resolved settings of the candidate were not seen": {"settings": {"level 5": None}},
    "level 5, critic: a.b: base 1, candidate 2": {"roles": {"level 5, critic": {"a.b": "2"}}},
    "image: base sha256:1, candidate sha256:2": {"image": "sha256:2"},
    "GPUs: base H200, candidate H100": {"gpus": ("H100",)},
}


@pytest.mark.parametrize("named", OTHER)
def test_sides_that_ran_otherwise_get_no_verdict_and_the_difference_is_named(named: str) -> None:
    pairs = [(run(BASE), run(CANDIDATE, **OTHER[named]))]
    (line,) = differences(pairs)
    assert named in line
    result, sentence = concluded(pairs * 3)
    assert (result, named in sentence) == ("Not proven", True)


@pytest.mark.parametrize(
    ("candidate", "result", "words"),
    [
        ({}, "Pass", "less than 0.05 below the base's: +0.0 points"),
        ({"drop": 0.1}, "Fail", "below the base's: -10.0 points"),
        ({"completed": False, "result": "Fail", "why": "it crashed"}, "Fail", "did not come to its end, the base did"),
        ({"completed": False, "result": "Not proven", "why": "no end"}, "Not proven", "no end"),
        ({"completed": False, "result": "Blocked", "why": "no GPU"}, "Blocked", "no GPU"),
        ({"result": "Fail", "why": "NaN"}, "Fail", "in every run, the base in none: NaN"),
        ({"curves": {}}, "Not proven", "no reward on both sides"),
    ],
)
def test_the_word_of_a_comparison(candidate: dict[str, Any], result: str, words: str) -> None:
    found, sentence = concluded(three(**candidate))
    assert (found, words in sentence) == (result, True), sentence


def test_one_run_that_missed_its_criteria_keeps_equal_curves_from_a_pass() -> None:
    pairs = three()
    pairs[1] = (pairs[1][0], replace(pairs[1][1], result="Fail", why="zero gradients"))
    assert concluded(pairs) == ("Not proven", verdict(pairs, decide(scores(pairs), 3))[1])
    assert "zero gradients" in concluded(pairs)[1]


def test_below_level_5_both_sides_have_to_pass() -> None:
    assert verdict([(run(BASE), run(CANDIDATE))], None)[0] == "Pass"
    assert verdict([(run(BASE), run(CANDIDATE, result="Not proven"))], None)[0] == "Not proven"
    assert verdict([(run(BASE, result="Not proven"), run(CANDIDATE))], None)[0] == "Not proven"


TEXT = """\
Result: Fail - the sentence
Base:      abc1234
Candidate: def5678
verl:      1234567
Pairs:     3 of at most 5, on h100a

Not the same on both sides:
- image: base a, candidate b

                       BASE             CANDIDATE        CHANGE
reward, last half      0.4563 ± 0.0012  0.4463 ± 0.0012  -0.01 (-2.2%)
time a step            10.5 ± 0 s       10.5 ± 0 s       +0 (+0.0%)
peak memory of rank 0  40 ± 0 GiB       not seen         –

Learning: contradicted. A Pass is wrong in at most 5% of comparisons with a candidate 5 points below its base, a Fail \
in at most 5% with one that is not below it.
https://w/r: candidate.1"""


def test_the_text_shows_both_sides_and_what_was_not_seen() -> None:
    pairs = [(replace(base, memory={0: 40.0}), other) for base, other in three(drop=0.01, memory={})]
    learning = _learning(decide(scores(pairs), 3), 0.05)
    linked = compared_run(replace(pairs[0][1], links=("https://w/r",)))
    result = LevelComparison(
        "Fail", 1, "the sentence", 5, "abc1234", "def5678", "1234567", "h100a", 3, 5,
        ("image: base a, candidate b",), learning, quantities(pairs), (linked,),
    )  # fmt: skip
    assert "\n".join(report.text(result)) == TEXT
    without = report.text(replace(result, quantities=quantities([]), differences=(), learning=None, runs=()))
    assert without[-2:] == ["Not seen: reward, last half, time a step, memory of a rank", ""]


@pytest.mark.parametrize(("ends", "pairs"), [("....", 2), ("xx", 1), (".C", 0)])  # x: no end, C: ^C
def test_pairs_run_until_one_says_enough_and_each_training_is_told(
    ends: str, pairs: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = list(ends)

    def train(_: object, side: str, number: int) -> ObservedRun | None:
        end = left.pop(0)
        return None if end == "C" else run(side, number, completed=end == ".")

    monkeypatch.setattr(_Comparison, "_train", train)
    request: Any = SimpleNamespace(planned=2, candidate=SimpleNamespace(request=SimpleNamespace(level=0)))
    done = [pair for pair in _Comparison(request, Config({}, {}, ()), {}, None).pairs() if pair is not None]
    assert (len(done), left) == (pairs, [])
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(ends.replace("C", ""))
    assert all(line.startswith("pair ") and ", reward 0." in line for line in told)
