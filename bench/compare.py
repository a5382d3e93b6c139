"""`compare`: how often is its word wrong, and what does it cost?

Runs are simulated, the decisions are those of the command. A setting is how often the base fails and how often yours
does, by way of failing. A word is wrong as ci_tasks/features/failures/comparison/decision.py says: `yours` where no way
is more frequent, `fixed` where none is rarer, `flaky`, `already broken` and `fine` where one is more frequent by half.

    python bench/compare.py [--seeds 2000] [--max-runs 20]

One JSON line a setting; exit code 1 where more words were wrong than promised.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.features.failures.comparison.decision import (
    BASE,
    CANNOT_TELL,
    ERROR,
    FIXED,
    RISE,
    YOURS,
    ComparisonVerdict,
    next_decision,
)
from ci_tasks.features.failures.repeats.outcomes import RepetitionOutcome

Rates = Mapping[str, float]  # way of failing → how often
FLAKY_BOTH = [({"a": rate}, {"a": rate}) for rate in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0)]
WORSE = [
    ({"a": base}, {"a": yours})
    for base, yours in ((0, 1), (0, 0.8), (0, 0.5), (0, 0.2), (0.05, 1), (0.1, 0.6), (0.3, 0.8), (0.5, 1), (0.1, 0.3))
]
BETTER = [({"a": base}, {"a": yours}) for base, yours in ((1, 0), (0.5, 0), (1, 0.5), (0.6, 0.3))]
SEVERAL_WAYS: list[tuple[Rates, Rates]] = [
    ({"a": 0.3, "b": 0.3}, {"a": 0.3, "b": 0.3}),
    ({"a": 0.2, "b": 0.2, "c": 0.2}, {"a": 0.2, "b": 0.2, "c": 0.2}),
    ({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}),
    ({"a": 0.05}, {"a": 0.05, "b": 0.95}),
    ({"a": 1}, {"b": 1}),
    ({"a": 0.5}, {"b": 0.5}),
]
TOLERANCE = 0.005  # three standard errors of 5 % of 2,000 would be 0.015; what is computed exactly is below ERROR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--max-runs", type=int, default=20)
    words = parser.parse_args()
    settings: list[tuple[Rates, Rates]] = [*FLAKY_BOTH, *WORSE, *BETTER, *SEVERAL_WAYS]
    errors = [measure(base, yours, words.seeds, words.max_runs) for base, yours in settings]
    return 0 if max(errors) <= ERROR + TOLERANCE else 1


def measure(base: Rates, yours: Rates, seeds: int, max_runs: int) -> float:
    """Print the figures of one setting. Returns the share of wrong words."""
    ended, runs = Counter[str](), []
    for seed in range(seeds):
        word, took = compare(base, yours, max_runs, random.Random(seed))
        ended[word] += 1
        runs.append(took)
    wrong = sum(count for word, count in ended.items() if is_wrong(word, base, yours)) / seeds
    figure = {
        "base": base,
        "yours": yours,
        "seeds": seeds,
        "promised": ERROR,
        "wrong": round(wrong, 4),
        "runs_median": median(runs),
        "words": {word: round(count / seeds, 3) for word, count in ended.most_common()},
    }
    print(json.dumps(figure), flush=True)
    return wrong


def compare(base: Rates, yours: Rates, max_runs: int, luck: random.Random) -> tuple[str, int]:
    outcomes: dict[str, list[RepetitionOutcome]] = {BASE: [], YOURS: []}
    runs = 0
    while not isinstance(
        decision := next_decision(outcomes[BASE], outcomes[YOURS], may_run=runs < max_runs), ComparisonVerdict
    ):
        for side in decision.sides:
            runs += 1
            outcomes[side].append(run(base if side == BASE else yours, luck))
    return decision.word, runs


def run(rates: Rates, luck: random.Random) -> RepetitionOutcome:
    left = luck.random()
    for way, rate in rates.items():
        if left < rate:
            return RepetitionOutcome("failed", way)
        left -= rate
    return RepetitionOutcome("passed")


def is_wrong(word: str, base: Rates, yours: Rates) -> bool:
    rises = [yours.get(way, 0) - base.get(way, 0) for way in {*base, *yours}]
    rises.append(sum(yours.values()) - sum(base.values()))
    if word == CANNOT_TELL:
        return False
    if word == YOURS:
        return max(rises) <= 1e-9
    if word == FIXED:
        return min(rises) >= -1e-9
    return max(rises) >= RISE - 1e-9


if __name__ == "__main__":
    sys.exit(main())
