"""`numbers`: how often is a healthy run marked, and how soon is a changed one?

Each case is a row with 8 metrics over 20 steps, of which a number of runs has passed. One more healthy run comes, and
one whose first metric is off by some standard deviations at every step. The scatter is normal, Student's t with five
degrees of freedom (heavy tails), or lognormal (skewed); runs of one row also move together by half of it. For drift, 60
runs are looked at once, without a change and with one of 3 standard deviations in the middle.

    python bench/number_bands.py [--cases 1000]

One JSON line a figure. Exit code 1 where more healthy runs than FALSE_MARKS are marked beyond what chance explains, or
more healthy rows drift than SIGNIFICANT.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.features.numbers.bands import FALSE_MARKS, learn, marks
from ci_tasks.features.numbers.drift import SIGNIFICANT, drifts
from ci_tasks.features.numbers.result import MetricPoint, RunNumbers
from ci_tasks.results.rates import wilson

METRICS, STEPS = 8, 20
RUNS = (5, 10, 20, 40)
SHIFTS = (3.0, 6.0, 12.0)
SCATTERS: dict[str, tuple[Callable[[random.Random], float], float]] = {  # a draw, and its standard deviation
    "normal": (lambda rng: rng.gauss(0, 1), 1.0),
    "t5": (lambda rng: rng.gauss(0, 1) / math.sqrt(rng.gammavariate(2.5, 2) / 5), math.sqrt(5 / 3)),
    "lognormal": (lambda rng: math.exp(rng.gauss(0, 0.5)), math.sqrt((math.e**0.25 - 1) * math.e**0.25)),
}


def run(rng: random.Random, scatter: str, at: int, shift: float = 0.0) -> RunNumbers:
    draw, deviation = SCATTERS[scatter]
    common = 0.5 * draw(rng)
    values = {
        f"metric {name}": tuple(
            MetricPoint(1, step, 10 + common + draw(rng) + (shift * deviation if name == 0 else 0.0))
            for step in range(STEPS)
        )
        for name in range(METRICS)
    }
    return RunNumbers(f"run-{at:03d}", "", "", values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    cases = parser.parse_args().cases
    bad = False
    for scatter in SCATTERS:
        for count in RUNS:
            rng = random.Random(f"{scatter} {count}")
            healthy, found = 0, dict.fromkeys(SHIFTS, 0)
            for _ in range(cases):
                bands = learn([run(rng, scatter, at) for at in range(count)])
                healthy += bool(marks(run(rng, scatter, count), bands))
                for shift in SHIFTS:
                    found[shift] += bool(marks(run(rng, scatter, count, shift), bands))
            low, high = wilson(healthy, cases)
            bad |= low > FALSE_MARKS
            rates = {f"found at {shift:g} sigma": round(hits / cases, 3) for shift, hits in found.items()}
            marked = {"marked": round(healthy / cases, 4), "interval": [round(low, 4), round(high, 4)]}
            print(json.dumps({"scatter": scatter, "runs": count, **marked, **rates}), flush=True)
        bad |= drift_figures(scatter, max(1, cases // 5))
    return int(bad)


def drift_figures(scatter: str, cases: int) -> bool:
    """Prints them. Returns whether healthy rows drift too often."""
    rng = random.Random(f"drift {scatter}")
    false = sum(bool(drifts([run(rng, scatter, at) for at in range(60)])) for _ in range(cases))
    found = sum(
        any(drift.name == "metric 0" for drift in drifts([run(rng, scatter, at, 3.0 * (at >= 30)) for at in range(60)]))
        for _ in range(cases)
    )
    low, high = wilson(false, cases)
    figures = {
        "false": round(false / cases, 4),
        "interval": [round(low, 4), round(high, 4)],
        "found": round(found / cases, 3),
    }
    print(json.dumps({"drift": scatter, "cases": cases, **figures}), flush=True)
    return low > SIGNIFICANT


if __name__ == "__main__":
    sys.exit(main())
