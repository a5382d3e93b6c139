"""Metric lines as trainers write them → series over steps, and one line in short; for facts see test_facts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ci_tasks.logs import reading
from ci_tasks.logs.reading import KL, LOSS, REWARD, VALIDATION, family_of, read_series

NAMES = [
    ("rollout/raw_reward", REWARD),
    ("critic/rewards/mean", REWARD),
    ("critic/rewards/max", ""),
    ("critic/score/mean", REWARD),
    ("eval/aime", VALIDATION),
    ("val-core/openai/gsm8k/acc/mean@1", VALIDATION),
    ("train/kl_loss", KL),
    ("train/train_rollout_logprob_abs_diff", reading.LOG_PROBS),
    ("training/rollout_probs_diff_mean", reading.LOG_PROBS),
    ("train/grad_norm", reading.GRAD_NORM),
    ("train/loss", LOSS),
    ("actor/pg_loss", LOSS),
    ("train/lr-pg_0", ""),
    ("gloss", ""),
]


@pytest.mark.parametrize(("name", "family"), NAMES)
def test_a_metric_belongs_to_the_family_that_its_name_says(name: str, family: str) -> None:
    assert family_of(name) == family


def test_series_come_by_family_and_a_second_training_is_a_part_of_its_own() -> None:
    log = b"".join(
        b"rollout %d: {'rollout/raw_reward': %d}\nstep %d: {'train/loss': 1, 'train/kl_loss': 0}\n" % (step, step, step)
        for step in (0, 1, 2, 0, 1)
    )
    by_name = read_series([log[:77], log[77:]])
    names = [(REWARD, "rollout/raw_reward"), (KL, "train/kl_loss"), (LOSS, "train/loss")]
    assert [(series.family, series.name) for series in by_name] == names
    assert by_name[0].parts == (((0, 0.0), (1, 1.0), (2, 2.0)), ((0, 0.0), (1, 1.0)))


def test_a_line_that_is_said_twice_counts_once() -> None:
    line = b"step 1: {'train/loss': 0.5}\n"
    assert read_series([line * 3])[0].parts == (((1, 0.5),),)


def test_nan_and_infinity_stay_as_they_were_logged() -> None:
    log = b"step 1: {'train/loss': nan}\nstep 2: {'train/loss': inf}\n"
    (_, first), (_, second) = read_series([log])[0].parts[0]
    assert math.isnan(first)
    assert second == math.inf


def test_a_long_training_keeps_its_spikes_in_bounded_memory() -> None:
    log = b"".join(
        b"step %d: {'train/grad_norm': %d}\n" % (step, 99 if step == 7001 else step % 3) for step in range(20_000)
    )
    (points,) = read_series([log])[0].parts
    assert len(points) <= reading.MOST_POINTS
    assert (7001, 99.0) in points
    assert points == tuple(sorted(points))
    assert points[-1][0] >= 19_990


@pytest.mark.parametrize("value", [b"nan", b"1"])
def test_a_training_of_nothing_but_nan_and_one_that_begins_again_and_again_are_bounded(value: bytes) -> None:
    rising = b"".join(b"step %d: {'train/loss': %s}\n" % (step, value) for step in range(5000))
    again = b"".join(b"step 0: {'train/grad_norm': %d}\n" % number for number in range(5000))
    by_name = {series.name: series.parts for series in read_series([rising, again])}
    assert len(by_name["train/loss"][0]) <= reading.MOST_POINTS
    assert len(by_name["train/grad_norm"]) == 20


@pytest.mark.parametrize(
    ("summary", "line", "expected"),
    [
        (reading.metrics_summary, b"step 12: {'train/grad_norm': 1.5, 'train/loss': 0.412345}", "step 12, loss 0.4123"),
        (
            reading.metrics_summary,
            b"(Manager pid=1) - rollout 3: {'rollout/raw_reward': 0.2}",
            "rollout 3, raw_reward 0.2",
        ),
        (reading.metrics_summary, b"\x1b[36m(Actor pid=1)\x1b[0m step 1: {'train/loss': nan}", "step 1, loss nan"),
        (reading.metrics_summary, b"step 4: {'a/b': 1, 'c/d': 2}", "step 4, 2 metrics"),
        # No line of metrics.
        (reading.metrics_summary, b"step:3 - a/loss:0.1", ""),
        (reading.metrics_summary, b"footstep 3: {'a': 1}", ""),
        (reading.metrics_summary, b"Training Progress: 10%|#   | 3/30 [00:10<01:30]", ""),
        # The actor in front goes, unless nothing else is there.
        (reading.line_summary, b"step 1: {'train/loss': 2}", "step 1, loss 2"),
        (reading.line_summary, b"(MegatronTrainRayActor pid=512) loading shard 3/8", "loading shard 3/8"),
        (reading.line_summary, b"(MegatronTrainRayActor pid=512) ", "(MegatronTrainRayActor pid=512)"),
        (reading.line_summary, b"\x1b[31mred\x1b[0m \x07bell", "red \ufffdbell"),
        (reading.line_summary, b"(a remark) stays", "(a remark) stays"),
    ],
)
def test_a_line_in_short(summary: Any, line: bytes, expected: str) -> None:
    assert summary(line) == expected
