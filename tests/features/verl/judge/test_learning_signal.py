"""Level 5's evidence, from metrics over steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ci_tasks.features.verl.judge.learning_signal import Criterion, learning

STEPS = 20
Row = dict[str, float]
Change = Callable[[int, Row], None]


def run(*changes: Change, steps: int = STEPS) -> dict[int, Row]:
    """A run that learns, changed step by step."""
    metrics: dict[int, Row] = {0: {"val-core/openai/gsm8k/acc/mean@1": 0.2}}
    for step in range(1, steps + 1):
        metrics[step] = {
            "actor/pg_loss": 0.5 / step,
            "actor/kl_loss": 0.001 * step,
            "actor/entropy": 0.7 - 0.01 * step,
            "actor/grad_norm": 0.2,
            "critic/vf_loss": 0.3 / step,
            "critic/values/mean": 0.1 * step,
            "critic/rewards/mean": 0.2 + 0.03 * step + 0.01 * (step % 2),
            "response_length/clip_ratio": 0.05,
            "perf/throughput": math.nan,
        }
    metrics[steps]["val-core/openai/gsm8k/acc/mean@1"] = 0.6
    for step, row in metrics.items():
        for change in changes:
            change(step, row)
    return metrics


def at(step: int, key: str, value: float) -> Change:
    def change(number: int, row: Row) -> None:
        if number == step:
            row[key] = value

    return change


def always(key: str, value: float, first: int = 1) -> Change:
    def change(number: int, row: Row) -> None:
        if number >= first:
            row[key] = value

    return change


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
    arguments = {"trainable": 8192, **other}
    return {check.name: check for check in learning(metrics, **arguments)}  # type: ignore[arg-type]


def test_a_run_that_learns_has_all_the_evidence() -> None:
    criteria = checks(run())
    assert {name for name, check in criteria.items() if check.ok is False} == set()
    assert criteria["validation or reward trend"].evidence.startswith(
        "validation 0.2 at step 0 → 0.6 at step 20; reward"
    )


# What is wrong with the run, which check says so, and its numbers.
WRONG: list[tuple[str, list[Change], str, str]] = [
    ("nan", [at(7, "actor/pg_loss", math.nan)], "no NaN or inf", "actor/pg_loss is nan at step 7"),
    ("inf", [at(3, "critic/rewards/max", math.inf)], "no NaN or inf", "critic/rewards/max is inf at step 3"),
    (
        "nan-of-logprobs",
        [at(3, "training/rollout_probs_diff_mean", math.nan)],
        "no NaN or inf",
        "training/rollout_probs_diff_mean is nan at step 3",
    ),
    (
        "constant-reward",
        [always("critic/rewards/mean", 1.0)],
        "rewards vary",
        "critic/rewards/mean is 1 at all 20 steps",
    ),
    (
        "constant-values",
        [always("critic/values/mean", 0.5)],
        "critic values vary",
        "critic/values/mean is 0.5 at all 20 steps",
    ),
    ("constant-logprobs", [always("actor/entropy", 0.6)], "logprobs vary", "actor/entropy is 0.6 at all 20 steps"),
    (
        "zero-gradients",
        [at(4, "actor/grad_norm", 0.0), at(5, "actor/grad_norm", 0.0)],
        "no repeated zero gradients",
        "actor/grad_norm is 0 at steps 4 and 5: frozen adapters?",
    ),
    ("no-gradients", [without("actor/grad")], "no repeated zero gradients", "actor/grad_norm was not logged"),
    (
        "capped",
        [always("response_length/clip_ratio", 0.9, first=12)],
        "responses end before the length cap",
        "90% of the last steps' responses hit the cap: not strong evidence; raise the response length, then rerun",
    ),
    (
        "no-critic-loss",
        [without("critic/vf")],
        "metrics over several steps",
        "actor loss at 20 steps, reward at 20 steps, critic loss at 0 steps",
    ),
    (
        "falling",
        [falling],
        "validation or reward trend",
        "validation 0.8 at step 0 → 0.4 at step 20; reward 0.69 → 0.27 (first and last 6 steps, standard error 0.032)",
    ),
]


@pytest.mark.parametrize(("changes", "name", "evidence"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_said_with_its_numbers(changes: list[Change], name: str, evidence: str) -> None:
    check = checks(run(*changes))[name]
    assert (check.ok, check.evidence) == (False, evidence)


def test_zero_gradients_that_do_not_follow_each_other_are_allowed() -> None:
    criteria = checks(run(at(4, "actor/grad_norm", 0.0), at(6, "actor/grad_norm", 0.0)))
    assert criteria["no repeated zero gradients"].ok


def test_a_nan_where_verl_had_nothing_to_compare_is_excused() -> None:
    changes = at(3, "training/rollout_probs_diff_mean", math.nan), at(3, "training/rollout_probs_diff_valid", 0.0)
    assert checks(run(*changes))["no NaN or inf"].ok


def test_an_algorithm_without_a_critic_needs_no_critic_loss() -> None:
    assert checks(run(without("critic/vf")), critic=False)["metrics over several steps"].ok


@pytest.mark.parametrize(("count", "peft", "ok"), [(0, True, False), (None, True, False), (None, False, None)])
def test_adapters_have_to_be_trainable(count: int | None, peft: bool, ok: bool | None) -> None:
    assert checks(run(), trainable=count, peft=peft)["trainable parameters"].ok is ok


def test_noise_that_goes_nowhere_is_no_trend() -> None:
    def flat(step: int, row: Row) -> None:
        row.pop("val-core/openai/gsm8k/acc/mean@1", None)
        row["critic/rewards/mean"] = 0.3 + 0.1 * (step % 3) + 0.0005 * step

    assert checks(run(flat))["validation or reward trend"].ok is False


@pytest.mark.parametrize(
    ("changes", "ok"), [((), True), ((always("critic/rewards/mean", 0.7),), True), ((falling,), False)]
)
def test_a_baseline_is_compared_within_its_noise(changes: tuple[Change, ...], ok: bool) -> None:
    assert checks(run(*changes), baseline=run())["validation or reward trend"].ok is ok


def test_a_baseline_without_rewards_is_nothing_to_compare_with() -> None:
    check = checks(run(), baseline={1: {"actor/pg_loss": 1.0}})["validation or reward trend"]
    assert (check.ok, check.evidence) == (False, "rewards at 20 steps, the baseline's at 0: nothing to compare")


def test_what_was_logged_too_seldom_is_unknown_and_not_ok() -> None:
    criteria = checks(run(without("critic/values"), steps=2))
    assert criteria["critic values vary"].ok is None
    assert criteria["rewards vary"].ok is None


def test_no_metrics_at_all_show_nothing() -> None:
    assert {name for name, check in checks({}).items() if check.ok is False} == {
        "metrics over several steps",
        "validation or reward trend",
        "no repeated zero gradients",
    }
