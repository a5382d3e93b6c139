"""Bisection of sets of changes, and of a metric: are planted causes found, at what cost, and what is the claim worth?

Runs are simulated, the decisions are those of the command. Changes are variables or packages: nothing tells them apart
here. One cause, two that act only together, and flaky ones are planted among 4 to 64 changes; a metric gets worse by 5,
10 or 20 % in one of 32 commits, and scatters. `bound` is the information that is missing (the logarithm of the number
of possible causes, to the base 2) by what one run can tell at most at that failure rate. No method can know the culprit
with fewer runs on average; neither does the bound contain the runs of the two ends, of which three each belong to every
search.

    python bench/bisect_axes.py                   20 single causes, 10 of two, 10 flaky, 5 metrics: each must be found
    python bench/bisect_axes.py --cases 1000      as many of a mixture: how often is what was named wrong?

One JSON line a figure; exit code 1 where a planted cause that is not flaky was not found, or false accusations are more
than claimed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from math import comb, log2
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.checkout.commits import Commit
from ci_tasks.config import Config
from ci_tasks.errors import UsageError
from ci_tasks.features.failures.bisection import bisection
from ci_tasks.features.failures.bisection.axis import ENV, Change, Point, SearchRange
from ci_tasks.features.failures.bisection.bisection_state import BisectionKey, open_state
from ci_tasks.features.failures.bisection.change_search import ChangeSearch
from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.commit_selection import max_information
from ci_tasks.features.failures.bisection.metric import MetricRule
from ci_tasks.features.failures.bisection.observations import FAIL, PASS, Observation
from ci_tasks.features.failures.bisection.run_commits import CommitRun, RowUnderTest
from ci_tasks.features.failures.bisection.strategy import BisectionGoal

HERE = Commit("0" * 40, (), "somebody", "2026-01-01", "here")
WORK = RowUnderTest("/checkout", None, "label", "row", Config({}, {}, ()))
COMMITS = 32


@dataclass(frozen=True)
class Answer:
    """What was named, with which claim, after how many runs; `named` is empty where it stayed unclear."""

    named: frozenset[str]
    claimed: float
    runs: int


@dataclass(frozen=True)
class Case:
    """A planted cause: the `culprits` among `changes` fail together at `rate`, and anything at `background`."""

    changes: int
    culprits: frozenset[str]
    rate: float
    background: float
    seed: int

    def bound(self) -> float:
        bits = log2(comb(self.changes, len(self.culprits)))
        return bits / max_information(min(self.rate, 0.995), max(self.background, 0.001))

    def search(self) -> Answer:
        luck = random.Random(self.seed)
        changes = tuple(Change(str(number), "good", "bad") for number in range(self.changes))

        def run(commit_run: CommitRun) -> Observation:
            has_all = all(commit_run.values[name] == "bad" for name in self.culprits)
            fails = luck.random() < self.background or (has_all and luck.random() < self.rate)
            return Observation(commit_run.position, FAIL if fails else PASS, "broken" if fails else "")

        bisection.run_commits = simulated(run)
        key = BisectionKey("/checkout", "", "", "label", f"row {self}")
        result = ChangeSearch(ENV, HERE, changes, WORK, key, ("sim",), fresh=True).run()
        (first, *_) = [*result.candidates, None]
        found = result.result == bisection.FOUND and first is not None
        names = frozenset(text.partition(":")[0] for text in first.changes) if found and first else frozenset()
        return Answer(names, first.probability if found and first else 0.0, result.runs)


@dataclass(frozen=True)
class MetricCase:
    """A metric of 100 that is `worse` from one commit on; each run scatters by `scatter`, all in percent."""

    worse: float
    scatter: float
    culprit: int
    seed: int

    def bound(self) -> float:
        """Each run as good as one that the limit half of the way tells from the others."""
        from statistics import NormalDist

        wrong = min(max(1 - NormalDist().cdf(self.worse / 2 / self.scatter), 0.001), 0.45)
        return log2(COMMITS) / max_information(1 - wrong, wrong)

    def search(self) -> Answer:
        luck = random.Random(self.seed)
        points = tuple(Point(Commit(f"{number:040x}", (), "", "", str(number))) for number in range(COMMITS + 1))

        def run(commit_run: CommitRun) -> Observation:
            value = luck.gauss(100 + (self.worse if commit_run.position >= self.culprit else 0), self.scatter)
            return Observation(commit_run.position, PASS, value=value)

        bisection.run_commits = simulated(run)
        search = SearchRange("commit", points, CommitGraph.linear(COMMITS))
        rule = MetricRule("step_time", self.worse / 100)
        key = BisectionKey("/checkout", "", "", "label", f"row {self}")
        with open_state(key, [point.key for point in points], fresh=True) as state:
            goal = BisectionGoal(search.graph, rule.signature)
            try:
                result = bisection.Bisection(search, goal, WORK, state, ("sim",), metric=rule).run()
            except UsageError:  # the ends do not differ by more than they scatter
                return Answer(frozenset(), 0.0, len(state.observations))
        named = (
            frozenset(each.subject for each in result.candidates) if result.result == bisection.FOUND else frozenset()
        )
        return Answer(named, result.candidates[0].probability if named else 0.0, result.runs)

    @property
    def culprits(self) -> frozenset[str]:
        return frozenset((str(self.culprit),))


def simulated(run: Callable[[CommitRun], Observation]) -> Any:
    def run_commits(work: RowUnderTest, commit_runs: Sequence[CommitRun], print_line: Any, on_result: Any) -> None:
        for commit_run in commit_runs:
            on_result(run(commit_run))

    return run_commits


def planted(luck: random.Random, causes: int, flaky: bool) -> Case:
    changes = luck.randint(4, 64)
    rate, background = (luck.uniform(0.3, 0.9), luck.choice((0.0, 0.02, 0.05))) if flaky else (1.0, 0.0)
    culprits = frozenset(map(str, luck.sample(range(changes), causes)))
    return Case(changes, culprits, rate, background, luck.getrandbits(32))


def groups(luck: random.Random) -> Mapping[str, Sequence[Case | MetricCase]]:
    def metric(worse: float, scatter: float) -> MetricCase:
        return MetricCase(worse, scatter, luck.randint(1, COMMITS), luck.getrandbits(32))

    return {
        "one cause": [planted(luck, 1, False) for _ in range(20)],
        "two together": [planted(luck, 2, False) for _ in range(10)],
        "flaky": [planted(luck, 1 + number % 2, True) for number in range(10)],
        "metric": [metric(5, 2), metric(5, 1), metric(10, 4), metric(10, 2), metric(20, 5)],
    }


def mixture(luck: random.Random, count: int) -> Mapping[str, Sequence[Case | MetricCase]]:
    def metric() -> MetricCase:
        worse = luck.choice((5.0, 10.0, 20.0))
        return MetricCase(worse, worse * luck.uniform(0.1, 0.8), luck.randint(1, COMMITS), luck.getrandbits(32))

    kinds: Mapping[str, Callable[[], Case | MetricCase]] = {
        "one cause": lambda: planted(luck, 1, False),
        "two together": lambda: planted(luck, 2, False),
        "flaky": lambda: planted(luck, luck.randint(1, 2), True),
        "metric": metric,
    }
    return {name: [make() for _ in range(count // len(kinds))] for name, make in kinds.items()}


def tell(name: str, cases: Sequence[Case | MetricCase], answers: Sequence[Answer]) -> dict[str, Any]:
    named = [(case, answer) for case, answer in zip(cases, answers, strict=True) if answer.named]
    wrong = sum(answer.named != case.culprits for case, answer in named)
    figure = {
        "bisect": name,
        "cases": len(cases),
        "found": len(named) - wrong,
        "wrong": wrong,
        "unclear": len(cases) - len(named),
        "claimed_wrong": round(sum(1 - answer.claimed for _, answer in named), 1),
        "runs": round(mean(answer.runs for answer in answers), 1),
        "bound": round(mean(case.bound() for case in cases), 1),
    }
    print(json.dumps(figure), file=sys.__stdout__, flush=True)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=0, help="so many of a mixture, instead of the planted ones")
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    luck = random.Random(words.seed)
    chosen = mixture(luck, words.cases) if words.cases else groups(luck)
    with tempfile.TemporaryDirectory(prefix="bench-axes-") as home, open(os.devnull, "w") as nowhere:
        os.environ["CI_TASKS_HOME"] = home
        with redirect_stdout(nowhere):
            figures = [tell(name, cases, [case.search() for case in cases]) for name, cases in chosen.items()]
    if words.cases:
        return 0 if sum(each["wrong"] for each in figures) <= sum(each["claimed_wrong"] for each in figures) else 1
    return 0 if all(each["found"] == each["cases"] or each["bisect"] == "flaky" for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
