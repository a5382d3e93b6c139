"""A run's log is read once: what it says is kept beside it, and never believed of another log."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from ci_tasks.logs import metrics, reading
from ci_tasks.logs.metrics import KL, LOSS, REWARD, VALIDATION, family_of, read_series
from ci_tasks.logs.reading import FILE, read_run_log, reading_of

LOG = b"step 1: {'train/loss': 0.5}\n== 3 passed in 0.1s ==\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(LOG)
    return path


def test_what_was_read_once_is_not_read_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_run_log(str(log))
    assert first.facts.pytest == {"passed": 3}
    assert [series.parts for series in first.series] == [(((1, 0.5),),)]
    monkeypatch.setattr(reading, "read_log", None)
    assert reading_of(str(log)) == first


def test_a_log_that_changed_is_read_again(log: Path) -> None:
    read_run_log(str(log))
    log.write_bytes(LOG.replace(b"3", b"4"))
    os.utime(log, ns=(1, 1))
    assert reading_of(str(log)).facts.pytest == {"passed": 4}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "[" * 100_000, '{"log": ["1"], "reading": {"facts": {"metrics": "x"}}}']
)
def test_a_file_that_does_not_hold_a_reading_is_passed_over(log: Path, content: str) -> None:
    (log.parent / FILE).write_text(content)
    assert reading_of(str(log)).facts.pytest == {"passed": 3}


def test_metrics_that_are_no_numbers_in_json_are_read_again(log: Path) -> None:
    log.write_bytes(b"step 1: {'train/loss': nan}\n")
    assert str(read_run_log(str(log)).facts.values) == "{'train/loss': nan}"
    assert str(reading_of(str(log)).facts.values) == "{'train/loss': nan}"


def test_a_log_that_goes_on_or_is_missing_leaves_nothing_beside_it(log: Path, tmp_path: Path) -> None:
    reading_of(str(log))
    assert read_run_log(str(tmp_path / "none" / "log")).facts.last_line is None
    assert os.listdir(tmp_path) == ["log"]


# -- metric lines as trainers write them → series over steps -----------------------------------------------------------


NAMES = [
    ("rollout/raw_reward", REWARD),
    ("critic/rewards/mean", REWARD),
    ("critic/rewards/max", ""),
    ("critic/score/mean", REWARD),
    ("eval/aime", VALIDATION),
    ("val-core/openai/gsm8k/acc/mean@1", VALIDATION),
    ("train/kl_loss", KL),
    ("train/train_rollout_logprob_abs_diff", metrics.LOG_PROBS),
    ("training/rollout_probs_diff_mean", metrics.LOG_PROBS),
    ("train/grad_norm", metrics.GRAD_NORM),
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
    assert len(points) <= metrics.MOST_POINTS
    assert (7001, 99.0) in points
    assert points == tuple(sorted(points))
    assert points[-1][0] >= 19_990


@pytest.mark.parametrize("value", [b"nan", b"1"])
def test_a_training_of_nothing_but_nan_and_one_that_begins_again_and_again_are_bounded(value: bytes) -> None:
    rising = b"".join(b"step %d: {'train/loss': %s}\n" % (step, value) for step in range(5000))
    again = b"".join(b"step 0: {'train/grad_norm': %d}\n" % number for number in range(5000))
    by_name = {series.name: series.parts for series in read_series([rising, again])}
    assert len(by_name["train/loss"][0]) <= metrics.MOST_POINTS
    assert len(by_name["train/grad_norm"]) == 20
