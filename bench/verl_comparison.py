"""How often `verl --base` is wrong at level 5, and how often it finds a drop: the rule Metrics on simulated curves.

    python bench/verl_comparison.py [--runs 2000] [--seed 1] [--case unsteady]

A curve is a reward in 64 answers a step to 16 prompts: it rises to a plateau, each batch has a difficulty that both
sides share (same seed, same data), each training has a level and a drift of its own (`run`), and answers are drawn. The
candidate's mean in the last half of the steps is lower by `drop`. Prints a JSON line for each case: the shares of the
words, and the mean number of pairs. Exit code 1 if a wrong word is more frequent than ERROR by more than the
simulation's own scatter. That neither side learns is for the level's own criteria.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

from ci_tasks.trials.rules import CANNOT_TELL, ERROR, NOT_WORSE, WORSE, Metrics, Outcome, TrialVerdict

MARGIN = 0.05
_PROMPTS, _ANSWERS = 16, 4
_LOW, _HIGH = 0.35, 0.55  # the mean reward at the first step, and where it levels off


@dataclass(frozen=True)
class Case:
    """`run` is the standard deviation of a training's own level, `tails` says that now and then it is far off."""

    name: str
    steps: int
    run: float
    tails: bool = False
    gain: float = 1.0


CASES = (
    Case("20 steps", 20, 0.015),
    Case("40 steps", 40, 0.015),
    Case("100 steps", 100, 0.01),
    Case("100 steps, unsteady", 100, 0.03),
    Case("100 steps, outliers", 100, 0.015, tails=True),
    Case("100 steps, no learning", 100, 0.01, gain=0.0),
)
PAIRS = (3, 5, 8)
DROPS = (0.0, 0.05, 0.10)


def pair(case: Case, drop: float, chance: random.Random) -> list[Outcome]:
    """One training of each side with one seed."""
    batches = [[chance.gauss(0, 0.9) for _ in range(_PROMPTS)] for _ in range(case.steps)]
    outcomes = []
    for side, lower in (("base", 0.0), ("candidate", drop)):
        last = [reward for _, reward in curve(case, lower, batches, chance)][case.steps // 2 :]
        metrics = {"reward": fmean(last), "reward error": stdev(last) / math.sqrt(len(last))}
        outcomes.append(Outcome(side, "level 5", "passed", metrics=metrics))
    return outcomes


def curve(case: Case, drop: float, batches: list[list[float]], chance: random.Random) -> Iterator[tuple[int, float]]:
    level = chance.gauss(0, case.run) * (4 if case.tails and chance.random() < 0.1 else 1)
    drift = 0.0
    rises = [1 - math.exp(-3 * step / case.steps) for step in range(1, case.steps + 1)]
    end = sum(rises[case.steps // 2 :]) / len(rises[case.steps // 2 :])
    for step, (rise, prompts) in enumerate(zip(rises, batches, strict=True), 1):
        drift = 0.9 * drift + chance.gauss(0, case.run / 4)
        mean = _LOW + case.gain * (_HIGH - _LOW) * rise - drop * rise / end + level + drift
        yield step, _reward(mean, prompts, chance)


def _reward(mean: float, prompts: list[float], chance: random.Random) -> float:
    """Of answers to prompts that are hard or easy, so that the reward of a batch is `mean` on average."""
    logit = math.log(min(max(mean, 0.01), 0.99) / (1 - min(max(mean, 0.01), 0.99)))
    shift = 1.11 * logit  # the mean over prompts of that spread is nearer to a half than the middle prompt
    right = 0
    for hardness in prompts:
        likely = 1 / (1 + math.exp(-(shift + hardness)))
        right += sum(chance.random() < likely for _ in range(_ANSWERS))
    return right / (_PROMPTS * _ANSWERS)


def measure(case: Case, planned: int, drop: float, runs: int, chance: random.Random) -> dict[str, float]:
    counts: Counter[str] = Counter()
    used = 0
    rule = Metrics("base", "candidate", "reward", MARGIN, planned)
    for _ in range(runs):
        outcomes: list[Outcome] = []
        while not isinstance(verdict := rule.next(outcomes), TrialVerdict):
            outcomes += pair(case, drop, chance)
        counts[verdict.word] += 1
        used += len(outcomes) // 2
    return {**{word: counts[word] / runs for word in (NOT_WORSE, WORSE, CANNOT_TELL)}, "pairs": used / runs}


def read_options(doc: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", default="", help="only cases whose names contain this")
    return parser.parse_args()


def conclude(worst: float, allowed: float, runs: int) -> int:
    """Print how often the worst case is wrong; 1 if that is more than the simulation's own scatter explains."""
    limit = allowed + 3 * math.sqrt(allowed * (1 - allowed) / runs)
    print(json.dumps({"worst_wrong": round(worst, 4), "allowed": allowed, "with_scatter": round(limit, 4)}))
    return int(worst > limit)


def main() -> int:
    options, worst = read_options(__doc__), 0.0
    for case, planned, drop in product(CASES, PAIRS, DROPS):
        if options.case in case.name:
            chance = random.Random(f"{options.seed} {case.name} {planned} {drop}")
            shares = measure(case, planned, drop, options.runs, chance)
            wrong = shares[NOT_WORSE] if drop >= MARGIN else shares[WORSE] if not drop else 0.0
            worst = max(worst, wrong)
            figures = {key: round(value, 4) for key, value in {**shares, "wrong": wrong}.items()}
            print(json.dumps({"case": case.name, "pairs_planned": planned, "drop": drop, **figures}), flush=True)
    return conclude(worst, ERROR, options.runs)


if __name__ == "__main__":
    sys.exit(main())
