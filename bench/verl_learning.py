"""How often one training of level 5 is said to show a learning signal that it has not, and how often one that it has.

    python bench/verl_learning.py [--runs 2000] [--seed 1] [--case drop]

A curve is the mean reward of 64 answers to 16 prompts a step, which rises to a plateau: each batch has a difficulty,
each training a level and a slow drift of its own. `gain` is how far the mean rises, `drop` how far a candidate ends
below its baseline. Prints a JSON line for each case with the shares of shown, contradicted and not seen. Exit code 1
where what is wrong is shown more often than ERROR by more than the simulation's own scatter. (`bench/trials.py metrics`
measures comparisons of several trainings of each side.)
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product

from ci_tasks.features.verl.judge.learning import ERROR, MARGIN, REWARD, trend
from ci_tasks.features.verl.judge.training_log import Metrics

STEPS = (20, 40, 100)
GAINS = (0.0, 0.5, 1.0)  # of 0.2 reward
DROPS = (0.0, 0.05, 0.10)
PROMPTS, ANSWERS = 16, 4
LOW, HIGH = 0.35, 0.55  # the mean reward at the first step, and where it levels off
RUN = 0.015  # the standard deviation of a training's own level


def curve(steps: int, gain: float, drop: float, chance: random.Random) -> Iterator[tuple[int, float]]:
    """The mean reward of each step."""
    batches = [[chance.gauss(0, 0.9) for _ in range(PROMPTS)] for _ in range(steps)]
    level, drift = chance.gauss(0, RUN), 0.0
    rises = [1 - math.exp(-3 * step / steps) for step in range(1, steps + 1)]
    end = sum(rises[steps // 2 :]) / len(rises[steps // 2 :])
    for step, (rise, prompts) in enumerate(zip(rises, batches, strict=True), 1):
        drift = 0.9 * drift + chance.gauss(0, RUN / 4)
        mean = LOW + gain * (HIGH - LOW) * rise - drop * rise / end + level + drift
        yield step, _reward(mean, prompts, chance)


def _reward(mean: float, prompts: list[float], chance: random.Random) -> float:
    """Of answers to prompts that are hard or easy, so that the reward of a batch is `mean` on average."""
    logit = math.log(min(max(mean, 0.01), 0.99) / (1 - min(max(mean, 0.01), 0.99)))
    shift = 1.11 * logit  # the mean over prompts of that spread is nearer to a half than the middle prompt
    right = 0
    for hardness in prompts:
        likely = 1 / (1 + math.exp(-(shift + hardness)))
        right += sum(chance.random() < likely for _ in range(ANSWERS))
    return right / (PROMPTS * ANSWERS)


def metrics(steps: int, gain: float, drop: float, chance: random.Random) -> Metrics:
    """A training's rewards, and a validation at both ends that is as noisy as 100 answers are."""
    rows = {step: {REWARD: value} for step, value in curve(steps, gain, drop, chance)}
    rows[0] = {"val-core/gsm8k/acc/mean@1": chance.gauss(0.4, 0.05)}
    rows[steps]["val-core/gsm8k/acc/mean@1"] = chance.gauss(0.4 + 0.2 * gain, 0.05)
    return rows


def alone(steps: int, gain: float, runs: int, chance: random.Random) -> Counter[str]:
    return Counter(trend(metrics(steps, gain, 0.0, chance)).outcome for _ in range(runs))


def against(steps: int, drop: float, runs: int, chance: random.Random) -> Counter[str]:
    """A candidate against a baseline; other batches, since one log is from another day."""
    pairs = ((metrics(steps, 1.0, drop, chance), metrics(steps, 1.0, 0.0, chance)) for _ in range(runs))
    return Counter(trend(candidate, baseline).outcome for candidate, baseline in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", default="", help="only cases whose names contain this")
    options, worst = parser.parse_args(), 0.0
    cases = [
        (name, value) for name, values in (("gain", GAINS), ("drop", DROPS)) if options.case in name for value in values
    ]
    for steps, (name, value) in product(STEPS, cases):
        chance = random.Random(f"{options.seed} {steps} {name} {value}")
        counts = (alone if name == "gain" else against)(steps, value, options.runs, chance)
        shares = {outcome: round(count / options.runs, 4) for outcome, count in sorted(counts.items())}
        false = value == 0.0 if name == "gain" else value >= MARGIN
        right = value == 0.0 if name == "drop" else value > 0
        wrong = max(shares.get("shown", 0.0) * false, shares.get("contradicted", 0.0) * right)
        worst = max(worst, wrong)
        print(json.dumps({"steps": steps, name: value, **shares, "wrong": wrong}), flush=True)
    limit = ERROR + 3 * math.sqrt(ERROR * (1 - ERROR) / options.runs)
    print(json.dumps({"worst_wrong": round(worst, 4), "allowed": ERROR, "with_scatter": round(limit, 4)}))
    return int(worst > limit)


if __name__ == "__main__":
    sys.exit(main())
