"""Bisection of a flaky failure: how often is the culprit found, what does it cost, and what is its probability worth?

A history of 64 commits, and a culprit after which a row fails in 30 % of its runs; before it, the same failure happens
by chance, at the background rate. Beside it the same history and the same luck by `git bisect run` with one run a
commit, and with five runs a commit of which one failure is enough. `claimed` is the mean of the probabilities that
were printed with a culprit, `held` how often that culprit was right.

    python bench/bisection.py [--seeds 1000] [--commits 64] [--rates 1,0.3] [--backgrounds 0,0.05] [--hosts 1,4]
    python bench/bisection.py --real [--tries 10] [--hosts 4]

Without --real, runs are simulated and the decisions are those of the command. With it, every try is a git history of
its own whose test draws from the system's randomness, and its runs are real ones, on so many hosts of this machine.
One JSON line a figure; exit code 1 where fewer than nine tries of ten found the culprit of a real history.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.observations import FAIL, PASS, Observation
from ci_tasks.features.failures.bisection.strategy import BisectionGoal, CulpritFound, RunCommits, next_decision

SIGNATURE = "AssertionError"
Fails = Callable[[int], bool]  # whether a run of the commit at a position fails
Answer = tuple[int | None, float, int, int]  # the culprit that was named, its probability, runs, rounds


def main() -> int:
    words = arguments()
    if words.real:
        return real(words)
    for rate, background in product(numbers(words.rates, float), numbers(words.backgrounds, float)):
        for hosts in numbers(words.hosts or "1,4", int):
            name = f"ci-tasks, {hosts} host{'' if hosts == 1 else 's'}"
            tell(words, rate, background, name, ours(words.commits, hosts))
        for repeats in (1, 5):
            name = f"git bisect run, {repeats} run{'' if repeats == 1 else 's'} a commit"
            tell(words, rate, background, name, plain(words.commits, repeats))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=64)
    parser.add_argument("--rates", default="1,0.3", help="how often the row fails from the culprit on")
    parser.add_argument("--backgrounds", default="0,0.05", help="how often it fails in the same way before")
    parser.add_argument("--hosts", default="", help="how many run at once")
    parser.add_argument("--real", action="store_true", help="real histories and runs, at a rate of 0.3")
    parser.add_argument("--tries", type=int, default=10)
    return parser.parse_args()


def numbers(text: str, kind: Callable[[str], Any]) -> list[Any]:
    return [kind(word) for word in text.split(",")]


# -- simulated -------------------------------------------------------------------------------------------------------


def tell(
    words: argparse.Namespace, rate: float, background: float, how: str, search: Callable[[Fails], Answer]
) -> None:
    begun = time.monotonic()
    right, claimed, runs, rounds = [], [], [], []
    for seed in range(words.seeds):
        luck = random.Random(seed)
        culprit = luck.randint(1, words.commits)

        def fails(at: int, culprit: int = culprit, luck: random.Random = luck) -> bool:
            return luck.random() < background or (at >= culprit and luck.random() < rate)

        named, probability, ran, took = search(fails)
        if named is not None:
            right.append(named == culprit)
            claimed.append(probability)
        runs.append(ran)
        rounds.append(took)
    figure = {
        "bisect": how,
        "commits": words.commits,
        "rate": rate,
        "background": background,
        "tries": words.seeds,
        "found": round(sum(right) / words.seeds, 3),
        "claimed": round(mean(claimed or [0.0]), 3),
        "held": round(mean(right or [0]), 3),
        "runs": round(mean(runs), 1),
        "rounds": round(mean(rounds), 1),
        "rounds_median": median(rounds),
        "rounds_most": max(rounds),
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figure), flush=True)


def ours(commits: int, hosts: int) -> Callable[[Fails], Answer]:
    """What `ci-tasks bisect` would do."""

    def search(fails: Fails) -> Answer:
        goal, rounds = BisectionGoal(CommitGraph.linear(commits)), 0
        seen: list[Observation] = []
        while isinstance(decision := next_decision(goal, seen, hosts), RunCommits):
            rounds += 1
            for at in decision.positions:
                seen.append(Observation(at, FAIL, SIGNATURE) if fails(at) else Observation(at, PASS))
        if isinstance(decision, CulpritFound):
            return decision.position, decision.probability, len(seen), rounds
        return None, 0.0, len(seen), rounds

    return search


def plain(commits: int, repeats: int) -> Callable[[Fails], Answer]:
    """What `git bisect run` would do with a script that runs the row `repeats` times, or until it fails. It believes
    what it is told of the ends."""

    def search(fails: Fails) -> Answer:
        good, bad, runs = 0, commits, 0
        while bad - good > 1:
            middle = (good + bad) // 2
            for _ in range(repeats):
                runs += 1
                if fails(middle):
                    bad = middle
                    break
            else:
                good = middle
        return bad, 1.0, runs, runs

    return search


# -- real ------------------------------------------------------------------------------------------------------------

WORKFLOW = """
on: {pull_request: {types: [labeled]}}
jobs:
  e2e-test-flaky:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {matrix: {info: [{test_file: test_flaky.py, num_gpus: 0}]}}
    steps:
      - uses: actions/checkout@v4
      - run: python3 tests/${{ matrix.info.test_file }}
"""
TEST = """
import random

RATE = {rate}

if __name__ == "__main__":
    assert random.SystemRandom().random() >= RATE, "the loss is not finite"
    print("step 1: ok")
"""


def real(words: argparse.Namespace) -> int:
    hosts = int(words.hosts or 4)
    with tempfile.TemporaryDirectory(prefix="bench-bisect-") as scratch:
        tries = [one_try(Path(scratch), seed, words.commits, hosts) for seed in range(words.tries)]
    right = sum(one["found"] for one in tries)
    figure = {
        "bisect": f"real runs, {hosts} hosts",
        "commits": words.commits,
        "rate": 0.3,
        "tries": len(tries),
        "found": right,
        "runs": round(mean(one["runs"] for one in tries), 1),
        "rounds": round(mean(one["rounds"] for one in tries), 1),
        "seconds": round(sum(one["seconds"] for one in tries)),
    }
    print(json.dumps(figure), flush=True)
    return 0 if right >= 0.9 * len(tries) else 1


def one_try(scratch: Path, seed: int, commits: int, hosts: int) -> dict[str, Any]:
    from ci_tasks.config import read
    from ci_tasks.features.failures.bisection import bisection
    from ci_tasks.features.failures.bisection.bisect import bisect
    from ci_tasks.features.failures.options import BisectOptions

    culprit = random.Random(seed).randint(1, commits)
    repo = history(scratch / f"history-{seed}", commits, culprit)
    os.environ["CI_TASKS_HOME"] = str(scratch / f"home-{seed}")
    names = tuple(f"sim{number}" for number in range(hosts))
    config = read("hosts:\n" + "".join(f"  {name}: {{kind: local, runtime: none}}\n" for name in names), "hosts.yaml")
    rounds, run_commits = [], bisection.run_commits

    def counted(work: Any, commit_runs: Any, *more: Any) -> None:
        rounds.append(len(commit_runs))
        run_commits(work, commit_runs, *more)

    bisection.run_commits = counted
    begun = time.monotonic()
    try:
        with open(scratch / f"log-{seed}", "w+") as log:
            with redirect_stdout(log):
                options = BisectOptions(good="c0", bad=f"c{commits}", label="flaky", only="flaky", repo=str(repo))
                code = bisect(options, names, config)
            log.seek(0)
            named = [line.split()[-1] for line in log if line.startswith("the culprit: ")]
    finally:
        bisection.run_commits = run_commits
    figure = {
        "try": seed,
        "culprit": culprit,
        "found": named == [git(repo, "rev-parse", f"c{culprit}")],
        "exit_code": code,
        "runs": sum(rounds),
        "rounds": len(rounds),
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figure), flush=True)
    return figure


def history(path: Path, commits: int, culprit: int) -> Path:
    """A repository with the tags c0, c1 and so on."""
    (path / "tests").mkdir(parents=True)
    (path / ".github/workflows").mkdir(parents=True)
    (path / ".github/workflows/pr-test.yml").write_text(WORKFLOW)
    git(path, "init", "-q", ".")
    for number in range(commits + 1):
        (path / "tests/test_flaky.py").write_text(TEST.format(rate=0.3 if number >= culprit else 0.0))
        (path / "notes").write_text(f"{number}\n")
        git(path, "add", "--all")
        git(path, "-c", "user.name=s", "-c", "user.email=s@example.com", "commit", "-q", "-m", f"change {number}")
        git(path, "tag", f"c{number}")
    return path


def git(path: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=path, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
