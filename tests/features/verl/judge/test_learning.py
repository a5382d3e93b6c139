"""Level 5's evidence, from metrics over steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.verl_learning import against, alone
from ci_tasks.features.verl.judge.learning import ERROR, learning
from ci_tasks.features.verl.judge.records import CONTRADICTED, NOT_SEEN, SHOWN, Criterion
from tests.features.verl.judge.conftest import metrics as usual
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "learning.json")).fixture()
learning = kept.of(learning)

STEPS = 20
Row = dict[str, float]
Change = Callable[[int, Row], None]


def run(*changes: Change, steps: int = STEPS) -> dict[int, Row]:
    """A run that learns, changed step by step."""
    metrics: dict[int, Row] = {0: {"val-core/openai/gsm8k/acc/mean@1": 0.2}}
    for step in range(1, steps + 1):
        rises = 0.2 + 0.03 * step + 0.01 * (step % 2)
        own = {"actor/grad_norm": 0.2, "critic/rewards/mean": rises, "perf/throughput": math.nan}
        metrics[step] = {**usual(step), **own}
    metrics[steps]["val-core/openai/gsm8k/acc/mean@1"] = 0.6
    for step, row in metrics.items():
        for change in changes:
            change(step, row)
    return metrics


def always(key: str, value: float, first: int = 1, last: int = 1000) -> Change:
    def change(number: int, row: Row) -> None:
        if first <= number <= last:
            row[key] = value

    return change


def at(step: int, key: str, value: float) -> Change:
    return always(key, value, step, step)


def without(prefix: str) -> Change:
    def change(_: int, row: Row) -> None:
        for key in [key for key in row if key.startswith(prefix)]:
            del row[key]

    return change


def falling(_: int, row: Row) -> None:
    for key in row:
        if key.startswith(("critic/rewards", "val-core")):
            row[key] = 1 - row[key]


def checks(metrics: dict[int, Row], **other: object) -> dict[str, Criterion]:
    """By name; of several of one name the one that is not shown."""
    found = learning(metrics, **{"steps": STEPS, **other})  # type: ignore[arg-type]
    return {check.name: check for check in sorted(found, key=lambda check: check.outcome != SHOWN)}


def test_a_run_that_learns_has_all_the_evidence() -> None:
    assert {check.outcome for check in checks(run()).values()} == {SHOWN}


def flat(step: int, row: Row) -> None:
    row["critic/rewards/mean"] = 0.3 + 0.1 * (step % 3) + 0.0005 * step


def saturated(step: int, row: Row) -> None:
    row["critic/rewards/mean"] = min(1.0, 0.3 + 0.06 * step + 0.1 * (-1) ** step)


def every_other(step: int, row: Row) -> None:
    row["actor/grad_norm"] = step % 2


def unlogged(step: int, row: Row) -> None:
    if step % 5:
        row.clear()


TREND, EVERY = "validation or reward trend", "metrics at every step"
CAP, CLIP = "hit the cap", "response_length/clip_ratio"
LOGGED = "actor loss at {0} of 20 steps, reward at {0} of 20 steps, critic loss at {1} of 20 steps"
REWARD, VALUES, ENTROPY, NORM = "critic/rewards/mean", "critic/values/mean", "actor/entropy", "actor/grad_norm"
ACCURACY = "val-core/openai/gsm8k/acc/mean@1"
RISES = "reward +0.5686 over 20 steps, standard error 0.0039"
ZERO = [at(4, NORM, 0.0), at(5, NORM, 0.0)]
# What is wrong with the run, which check says so, and its numbers.
WRONG: list[tuple[list[Change], str, str]] = [
    ([always(REWARD, 1.0)], "rewards vary", f"{REWARD} is 1 at all 20 steps"),
    ([always(VALUES, 0.5)], "critic values vary", f"{VALUES} is 0.5 at all 20 steps"),
    ([always(ENTROPY, 0.6)], "logprobs vary", f"{ENTROPY} is 0.6 at all 20 steps"),
    ([always("actor/pg_loss", 0.5)], "losses vary", "actor/pg_loss is 0.5 at all 20 steps"),
    ([every_other], "no repeated zero gradients", f"{NORM} is 0 at steps 2, 4, 6, 8, 10 and 5 more: frozen adapters?"),
    (ZERO, "no repeated zero gradients", f"{NORM} is 0 at steps 4, 5: frozen adapters?"),
    ([always(CLIP, 0.9, first=16)], "responses end before the length cap", f"76% of the last steps' responses {CAP}"),
    ([falling], TREND, "reward -0.5686 over 20 steps, standard error 0.0039: it falls"),
    ([at(5, "actor/ppo_kl", 1e6)], "stable updates", "the largest KL is actor/ppo_kl 1e+06 at step 5"),
    ([always(ENTROPY, 1e-4, first=9)], "stable updates",
     "actor/entropy 0.665 → 0.0001 (first and last 6 steps)"),
]  # fmt: skip
# What is missing or scatters, the check that cannot see, and what it says.
UNSEEN: list[tuple[list[Change], str, str]] = [
    ([unlogged], EVERY, LOGGED.format(4, 4)),
    ([without("critic/vf")], EVERY, LOGGED.format(20, 0)),
    ([without("actor/grad")], "no repeated zero gradients", f"{NORM} was not logged"),
    ([without("critic/rewards")], "rewards vary", "too few were logged"),
    ([at(20, ACCURACY, 0.15)], TREND, f"{RISES}; but validation falls from 0.2 to 0.15"),
    ([always(NORM, 1e9, first=11)], "stable updates", f"{NORM} 0.2 (first quartile), at most 1e+09 at step 20"),
    ([saturated], TREND, "it is saturated: 1 at the last 6 steps"),
    ([flat], TREND, "reward +0.0195 over 20 steps, standard error 0.062; but no more than its scatter"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "changes", "name", "evidence"),
    [*((CONTRADICTED, *case) for case in WRONG), *((NOT_SEEN, *case) for case in UNSEEN)],
)
def test_what_is_wrong_or_not_seen_is_said_with_its_numbers(
    outcome: str, changes: list[Change], name: str, evidence: str
) -> None:
    check = checks(run(*changes))[name]
    assert (check.outcome, check.evidence.endswith(evidence)) == (outcome, True), check


def test_an_algorithm_without_a_critic_needs_no_critic_loss() -> None:
    assert checks(run(without("critic/vf")), critic=False)["metrics at every step"].outcome == SHOWN


def around(value: float, early: float | None = None) -> Change:
    """Rewards that scatter a little; `early` are those of the first steps."""
    return lambda step, row: row.update({REWARD: early if early and step < 8 else value + 0.01 * (step % 2)})


BASELINES = [
    (around(0.6), SHOWN, ""),
    (around(0.8), SHOWN, ""),
    (always(REWARD, 0.4), CONTRADICTED, ""),
    (around(0.7, early=1.6), NOT_SEEN, "it falls from 1.6 to 0.705"),
]


@pytest.mark.parametrize(("change", "outcome", "words"), BASELINES)
def test_a_baseline_is_compared_within_its_noise(change: Change, outcome: str, words: str) -> None:
    check = checks(run(change), baseline=run(around(0.6)))[TREND]
    assert (check.outcome, words in check.evidence) == (outcome, True), check


def test_a_run_that_learns_nothing_is_seldom_shown_to_learn() -> None:
    """The whole measurement is bench/verl_learning.py; here a part of it, seeded."""
    assert alone(20, 0.0, 100, random.Random(1))[SHOWN] <= 100 * ERROR
    assert alone(100, 1.0, 20, random.Random(1))[SHOWN] >= 15


def test_a_candidate_below_its_baseline_is_seldom_shown_to_be_level() -> None:
    assert against(20, 0.05, 100, random.Random(1))[SHOWN] <= 100 * ERROR
    assert against(100, 0.10, 20, random.Random(1))[CONTRADICTED] >= 10
