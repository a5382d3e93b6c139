"""How often one training of level 5 is said to show a learning signal that it has not, and how often one that it has.

    python bench/verl_learning.py [--runs 2000] [--seed 1] [--case drop]

A curve is the mean reward of 64 answers to 16 prompts a step, as in `bench/verl_comparison.py`: each batch has a
difficulty, each training a level and a slow drift of its own. `gain` is how far the mean rises, `drop` how far a
candidate ends below its baseline. Prints a JSON line for each case with the shares of shown, contradicted and not seen.
Exit code 1 where what is wrong is shown more often than ERROR by more than the simulation's own scatter.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.verl_comparison import Case, conclude, curve, read_options
from ci_tasks.features.verl.judge.learning import ERROR, MARGIN, REWARD, trend
from ci_tasks.features.verl.judge.training_log import Metrics

STEPS = (20, 40, 100)
GAINS = (0.0, 0.5, 1.0)  # of 0.2 reward
DROPS = (0.0, 0.05, 0.10)
PROMPTS = 16


def metrics(steps: int, gain: float, drop: float, chance: random.Random) -> Metrics:
    """A training's rewards, and a validation at both ends that is as noisy as 100 answers are."""
    case = Case("", steps, 0.015, gain=gain)
    batches = [[chance.gauss(0, 0.9) for _ in range(PROMPTS)] for _ in range(steps)]
    rows = {step: {REWARD: value} for step, value in curve(case, drop, batches, chance)}
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
    options, worst = read_options(__doc__), 0.0
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
    return conclude(worst, ERROR, options.runs)


if __name__ == "__main__":
    sys.exit(main())
