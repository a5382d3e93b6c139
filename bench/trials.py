"""What the rules of ci_tasks/trials promise, on simulated runs: how often is a word wrong, and what does it cost?

    python bench/trials.py [repeat] [match] [ab] [bisect] [metrics] [--seeds 2000] [--only TEXT] [--limit SECONDS]

The decisions are those of the commands. One JSON line a setting: `wrong` is the share of all trials whose word was
wrong, of bisect that of those that named a culprit with a promise. Exit code 1 if one is above ERROR by more than three
standard errors of the simulation. `--limit` ends a setting early; `seeds` says how many it took.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import sin, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.trials import rules
from ci_tasks.trials.bisection import Bisect, CommitGraph
from ci_tasks.trials.rules import AB, ERROR, RISE, Match, Metrics, Outcome, Repeat, TrialRule, TrialVerdict


class Ended(NamedTuple):
    """`is_wrong` is None if nothing was promised."""

    word: str
    is_wrong: bool | None
    runs: int


def play(rule: TrialRule, run: Callable[[str], Outcome]) -> tuple[TrialVerdict, list[Outcome]]:
    outcomes: list[Outcome] = []
    while not isinstance(what := rule.next(outcomes), TrialVerdict):
        outcomes += [run(setting) for setting in what]
    return what, outcomes


def outcome(setting: str, way: str | None) -> Outcome:
    """A run that passed (""), failed in some way, or was blocked (None)."""
    status = rules.BLOCKED if way is None else rules.FAILED if way else rules.PASSED
    return Outcome(setting, "row", status, way or "")


def repeat(rate: float, seed: int) -> Ended:
    luck = random.Random(seed)
    verdict, outcomes = play(Repeat("t", 20), lambda setting: outcome(setting, "a" if luck.random() < rate else ""))
    low, high = verdict.interval
    return Ended(verdict.word, not low - 1e-9 <= rate <= high + 1e-9, len(outcomes))


def match(rate: float, most: int, seed: int) -> Ended:
    """CI's failure happens here with a rate; `passed here` says that it does so less often than a bound."""
    luck = random.Random(seed)
    rule = Match("t", lambda one: rules.REPRODUCED, most)
    verdict, outcomes = play(rule, lambda setting: outcome(setting, "a" if luck.random() < rate else ""))
    bound = 1 - ERROR ** (1 / most)
    return Ended(verdict.word, verdict.word == rules.PASSED_HERE and rate >= bound, len(outcomes))


def ab(base: Mapping[str, float], yours: Mapping[str, float], blocked: float, most: int, seed: int) -> Ended:
    luck = random.Random(seed)

    def run(setting: str) -> Outcome:
        if luck.random() < blocked:
            return outcome(setting, None)
        left = luck.random()
        for way, rate in (base if setting == "base" else yours).items():
            if left < rate:
                return outcome(setting, way)
            left -= rate
        return outcome(setting, "")

    verdict, outcomes = play(AB("base", "yours", most, seed=str(seed)), run)
    rises = [yours.get(way, 0) - base.get(way, 0) for way in {*base, *yours}]
    rises.append(sum(yours.values()) - sum(base.values()))
    overlooked = max(rises) >= RISE - 1e-9
    wrong = {"yours": max(rises) <= 1e-9, "fixed": min(rises) >= -1e-9, "fine": overlooked, "flaky": overlooked}
    wrong["already broken"] = overlooked
    return Ended(verdict.word, wrong.get(verdict.word, False), len(outcomes))


def bisect(
    commits: int, rate: float, background: float, blocked: float, other: float, drift: float, seed: int
) -> Ended:
    luck = random.Random(seed)
    culprit, runs = luck.randint(1, commits), 0

    def run(setting: str) -> Outcome:
        nonlocal runs
        runs += 1
        if luck.random() < blocked:
            return outcome(setting, None)
        if luck.random() < other:
            return outcome(setting, "another")
        chance = (rate if int(setting) >= culprit else background) + drift * sin(runs / 15)
        return outcome(setting, "a" if luck.random() < chance else "")

    settings = [str(at) for at in range(commits + 1)]
    verdict, outcomes = play(Bisect(settings, CommitGraph.linear(commits)), run)
    named = verdict.word == "found" and verdict.promise is not None
    return Ended(verdict.word, verdict.likely[0][0] != str(culprit) if named else None, len(outcomes))


def metrics(drop: float, kind: str, pairs: int, seed: int) -> Ended:
    luck, runs = random.Random(seed), 0

    def run(setting: str) -> Outcome:
        nonlocal runs
        runs += 1
        value = 0.55 - drop * (setting == "yours") + luck.gauss(0, 0.015)
        value += 0.1 * (luck.random() < 0.1) if kind == "outliers" else 0.01 * runs if kind == "drift" else 0
        return Outcome(setting, "row", rules.PASSED, metrics={"reward": value, "reward error": 0.004})

    verdict, outcomes = play(Metrics("base", "yours", "reward", 0.05, pairs, seed=str(seed)), run)
    wrong = {"worse": drop == 0, "not worse": drop >= 0.05}
    return Ended(verdict.word, wrong.get(verdict.word, False), len(outcomes))


def settings() -> dict[str, Callable[[int], Ended]]:
    found: dict[str, Callable[[int], Ended]] = {}
    for rate in (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.5, 0.55, 0.7, 0.9, 0.98, 1):
        found[f"repeat {rate}"] = partial(repeat, rate)
    for rate, most in ((0.14, 20), (0.3, 20), (0.46, 5), (0.95, 1), (0.1, 20)):
        found[f"match {rate} of {most} runs"] = partial(match, rate, most)
    pairs = [(rate, rate) for rate in (0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1)]
    pairs += [(0, 1), (0, 0.8), (0, 0.5), (0, 0.2), (0.05, 1), (0.1, 0.6), (0.3, 0.8), (0.5, 1), (0.1, 0.3), (0.3, 0.5)]
    pairs += [(1, 0), (0.5, 0), (1, 0.5), (0.6, 0.3)]
    both = [({"a": base}, {"a": yours}, 0.0) for base, yours in pairs]
    both += [({"a": 0.5}, {"a": 0.5}, 0.3), ({"a": 0}, {"a": 1}, 0.3), ({"a": 0}, {"a": 0}, 0.3)]
    several = {"a": 0.3, "b": 0.3}, {"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.2, "c": 0.2}
    both += [(ways, ways, 0.0) for ways in several]
    both += [({"a": 0.05}, {"a": 0.05, "b": 0.95}, 0.0), ({"a": 1}, {"b": 1}, 0.0), ({"a": 0.5}, {"b": 0.5}, 0.0)]
    for base, yours, blocked in both:
        for most in (20, 50):
            found[f"ab {base} | {yours} blocked {blocked} most {most}"] = partial(ab, base, yours, blocked, most)
    rates = [(1.0, 0.0), (0.5, 0), (0.3, 0), (1, 0.05), (0.3, 0.05), (0.5, 0.1), (0.28, 0.1), (0.2, 0)]
    searches = [(64, rate, background, 0.0, 0.0, 0.0) for rate, background in rates]
    searches += [(64, 1, 0, 0.3, 0, 0), (64, 0.525, 0.05, 0.3, 0, 0), (64, 1, 0, 0, 0.3, 0)]
    searches += [(64, 0.5, 0, 0, 0.1, 0), (64, 0.5, 0.05, 0, 0, 0.04), (1000, 1, 0, 0, 0, 0)]
    for words in searches:
        found["bisect {} commits {}/{} blocked {} other {} drift {}".format(*words)] = partial(bisect, *words)
    for drop in (0, 0.05, 0.1):
        for kind in ("normal", "outliers", "drift"):
            for count in (3, 5, 8):
                found[f"metrics drop {drop} {kind} {count} pairs"] = partial(metrics, drop, kind, count)
    return found


def measure(name: str, one: Callable[[int], Ended], seeds: int, limit: float) -> bool:
    """Print the figures of a setting. Returns whether its promise holds."""
    begun, ended = time.monotonic(), list[Ended]()
    while len(ended) < seeds and time.monotonic() - begun < limit:
        ended.append(one(len(ended)))
    promised = [each.is_wrong for each in ended if each.is_wrong is not None]
    wrong = sum(promised) / max(len(promised), 1)
    words = {word: round(count / len(ended), 3) for word, count in Counter(each.word for each in ended).most_common()}
    runs = [each.runs for each in ended]
    figure = {"setting": name, "seeds": len(ended), "promised": len(promised), "wrong": round(wrong, 4)}
    print(json.dumps({**figure, "runs": round(fmean(runs), 1), "median": median(runs), "words": words}), flush=True)
    return wrong <= ERROR + 3 * sqrt(ERROR * (1 - ERROR) / max(len(promised), 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", default=["repeat", "match", "ab", "bisect", "metrics"])
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--only", default="", help="settings whose names contain this")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds for a setting")
    words = parser.parse_args()
    chosen = {name: one for name, one in settings().items() if name.split()[0] in words.rules and words.only in name}
    held = [measure(name, one, words.seeds, words.limit) for name, one in chosen.items()]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
