"""Level 5's evidence: whether metrics over a short run show a learning signal. It is never called convergence. Pure.

`bench/verl_learning.py` measures on simulated curves how often a run that learns nothing, or one that is below its
baseline, is shown to be what it is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from ci_tasks.features.verl.judge.log_records import Metrics
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown
from ci_tasks.trials.student import chance_of_more

REWARD = "critic/rewards/mean"
TREND = "validation or reward trend"
_REWARDS = (REWARD, "critic/score/mean")
ERROR = 0.05  # how often a run without a learning signal may be shown to have one
_LEVEL = 0.03  # of a single test: the correction for steps that are not independent leaves a little
_FALLS = 0.01  # of the word that rewards fall, which fails a level
MARGIN = 0.05  # reward that a candidate may lose against a baseline without being seen
RUN_SCATTER = 0.015  # standard deviation of equal trainings' rewards; one training of each cannot show it
REPEATED_ZEROS = 2  # one step may have a batch whose advantages are all 0; two in a row are no accident
FEWEST_FOR_CONSTANT = 3  # two equal values may be chance, with rewards of 0 or 1 above all
FEWEST_FOR_TREND = 10
SAME = 1e-9  # relative: metrics are means of float32, so learning moves them by far more
THIRD = 3
MANY_CAPPED = 0.5  # share of responses at the cap from which on rewards say more of the cap than of the policy
MOST_KL = 10.0  # nats a token: the two policies have nothing in common any more
LEAST_ENTROPY = (0.02, 0.1)  # nats a token, and the share of what it was at the beginning: less of both has collapsed
MOST_SPIKE = 1000.0  # of a gradient's norm, times what is usual: what is clipped by so much has no direction left
HALVED = 0.5  # of a validation that began with at least 0.1: no scatter of a test set
_VALIDATION = re.compile(r"(?i)^val-core/.*(?:reward|acc|score)")
_KL = re.compile(r"(?i)(?:^|[/_])kl(?:_loss)?$|kl_penalty$")
_ENTROPY = "actor/entropy"
_LOSSES = ("actor/pg_loss", "critic/vf_loss")
_CAPPED = "response_length/clip_ratio"
_CRITIC_VALUES = ("critic/values/mean", "critic/vpred_mean")
_LOG_PROBS = re.compile(r"(?i)log_?probs?(?:/|_)?mean|probs_diff_mean|^actor/entropy$")
_RERUN = "rerun with more steps, or with --base and --repeat, which compares pairs of trainings"


def learning(
    metrics: Metrics, *, steps: int, warmup: int = 0, critic: bool = True, baseline: Metrics | None = None
) -> tuple[Criterion, ...]:
    """The guide's evidence list for one run of so many steps, the first of which, `warmup`, train the critic alone.
    `critic` says that there is one; `baseline` are another run's metrics to compare with. What finite metrics and
    trainable parameters show is judged at every level, not here."""
    found = (
        _every_step(metrics, steps, warmup, critic),
        trend(metrics, baseline),
        _gradients(metrics),
        _spikes(metrics),
        _varies("rewards vary", metrics, _of(metrics, _REWARDS)) or not_seen("rewards vary", "too few were logged"),
        _varies("losses vary", metrics, _LOSSES),
        _varies("critic values vary", metrics, _CRITIC_VALUES),
        _varies("logprobs vary", metrics, _matching(metrics, _LOG_PROBS)),
        _kl(metrics),
        _entropy(metrics),
        capped(metrics),
    )
    return tuple(criterion for criterion in found if criterion is not None)


def trend(metrics: Metrics, baseline: Metrics | None = None) -> Criterion:
    """Whether the reward moved up since the start, or is where a baseline's is. Two values of a validation have a
    scatter that nobody knows, so that they are quoted beside it and show nothing."""
    rewards = series(metrics, _first_of(metrics, _REWARDS))
    if baseline is not None:
        return _against(rewards, series(baseline, _first_of(baseline, _REWARDS)))
    means = _validation_means(metrics)
    validation = _validation(means)
    if len(rewards) < FEWEST_FOR_TREND:
        text = f"rewards at {len(rewards)} steps are too few for a trend"
        return not_seen(TREND, f"{validation}; {text}" if validation else text, _RERUN)
    gain, error, freedom = _slope(rewards)
    rises, falls = chance_of_more(gain, error, freedom), chance_of_more(-gain, error, freedom)
    text = f"reward {gain:+.4g} over {len(rewards)} steps, standard error {error:.2g}"
    text = f"{validation}; {text}" if validation else text
    if rises <= _LEVEL and means and means[max(means)] < HALVED * means[min(means)] >= HALVED * 0.1:
        return not_seen(TREND, f"{text}; but validation fell", "compare with the base: --base REV --repeat 5")
    if rises <= _LEVEL:
        return shown(TREND, text)
    if falls <= _FALLS:
        return contradicted(TREND, f"{text}: it falls", follow_up="compare with the base: --base REV --repeat 5")
    return not_seen(TREND, f"{text}: no more than its scatter", _RERUN)


def capped(metrics: Metrics) -> Criterion | None:
    """Whether responses end by themselves: a run whose responses are cut off is no strong evidence."""
    name = "responses end before the length cap"
    shares = [value for _, value in series(metrics, _CAPPED)]
    if not shares:
        return None
    share = fmean(shares[-max(1, len(shares) // THIRD) :])
    text = f"{share:.0%} of the last steps' responses hit the cap"
    if share >= MANY_CAPPED:
        return contradicted(name, f"{text}: not strong evidence; raise the response length, then rerun")
    return shown(name, text)


def series(metrics: Metrics, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, from step 1 on, where it was logged and is a number."""
    points = ((step, metrics[step].get(key, math.nan)) for step in sorted(metrics) if step > 0)
    return [(step, value) for step, value in points if math.isfinite(value)]


def _every_step(metrics: Metrics, steps: int, warmup: int, critic: bool) -> Criterion:
    name = "metrics at every step"
    predicates: dict[str, tuple[Callable[[str], bool], int]] = {
        "actor loss": (lambda key: key.startswith("actor/") and "loss" in key, warmup),
        "reward": (lambda key: key in _REWARDS, 0),
    }
    if critic:
        predicates["critic loss"] = (lambda key: key.startswith("critic/") and "loss" in key, 0)
    logged = {
        what: sum(any(map(fits, metrics.get(step, ()))) for step in range(first + 1, steps + 1))
        for what, (fits, first) in predicates.items()
    }
    text = ", ".join(f"{what} at {count} of {steps - predicates[what][1]} steps" for what, count in logged.items())
    if any(count < steps - predicates[what][1] for what, count in logged.items()):
        return not_seen(name, text, "rerun with verl's console logger, and keep the whole log")
    return shown(name, text)


def _kl(metrics: Metrics) -> Criterion | None:
    name = f"KL below {MOST_KL:g}"
    points = [(abs(value), key, step) for key in _matching(metrics, _KL) for step, value in series(metrics, key)]
    if not points:
        return None
    value, key, step = max(points)
    text = f"the largest is {key} {value:.3g} at step {step}"
    if value > MOST_KL:
        return contradicted(name, text, follow_up="compare logprobs of trainer and rollout: the policies have parted")
    return shown(name, text)


def _entropy(metrics: Metrics) -> Criterion | None:
    name = "entropy does not collapse"
    values = [value for _, value in series(metrics, _ENTROPY)]
    if len(values) < FEWEST_FOR_CONSTANT:
        return None
    size = max(1, len(values) // THIRD)
    first, last = fmean(values[:size]), fmean(values[-size:])
    text = f"{_ENTROPY} {first:.3g} → {last:.3g} (first and last {size} steps)"
    least, share = LEAST_ENTROPY
    if last < min(least, share * first):
        return contradicted(name, text, follow_up="compare with the base: the policy has become deterministic")
    return shown(name, text)


def _gradients(metrics: Metrics) -> Criterion:
    name = "no repeated zero gradients"
    keys = [key for key in _keys(metrics) if key.endswith("grad_norm")]
    if not any(key.startswith("actor/") for key in keys):
        return not_seen(name, "actor/grad_norm was not logged")
    for key in sorted(keys):
        run: list[int] = []
        for step, value in series(metrics, key):
            run = [*run, step] if value == 0.0 else []
            if len(run) >= REPEATED_ZEROS:
                return contradicted(name, f"{key} is 0 at steps {run[0]} and {run[1]}: frozen adapters?")
    low = min((value for _, value in series(metrics, "actor/grad_norm")), default=math.nan)
    return shown(name, f"the smallest actor/grad_norm is {low:.3g}")


def _spikes(metrics: Metrics) -> Criterion | None:
    name = "stable gradients"
    points = [(value, step) for step, value in series(metrics, "actor/grad_norm")]
    if len(points) < FEWEST_FOR_CONSTANT:
        return None
    (high, step), usual = max(points), sorted(points)[len(points) // 4][0]  # half of them may be high
    text = f"actor/grad_norm {usual:.3g} (first quartile), at most {high:.3g} at step {step}"
    if high > MOST_SPIKE * usual > 0:
        return not_seen(name, text, "see what step has such an update: its batch, loss and learning rate")
    return shown(name, text)


def _varies(name: str, metrics: Metrics, keys: Iterable[str]) -> Criterion | None:
    """None where it was not logged often enough to say."""
    ranges = []
    for key in keys:
        points = series(metrics, key)
        if len(points) < FEWEST_FOR_CONSTANT:
            continue
        values = [value for _, value in points]
        low, high = min(values), max(values)
        if high - low <= SAME * max(abs(low), abs(high)):
            return contradicted(name, f"{key} is {low:.4g} at all {len(values)} steps")
        ranges.append(f"{key} from {low:.4g} to {high:.4g}")
    return shown(name, "; ".join(ranges)) if ranges else None


def _against(rewards: Sequence[tuple[int, float]], base: Sequence[tuple[int, float]]) -> Criterion:
    """Of the last halves, where both have levelled off as far as they do."""
    ours, theirs = rewards[len(rewards) // 2 :], base[len(base) // 2 :]
    if min(len(ours), len(theirs)) < FEWEST_FOR_TREND // 2:
        text = f"rewards at {len(rewards)} steps, the baseline's at {len(base)}: nothing to compare"
        return not_seen(TREND, text, _RERUN)
    own, other = (fmean(value for _, value in points) for points in (ours, theirs))
    parts = [_mean_error(points) for points in (ours, theirs)]
    error = math.hypot(*(part for part, _ in parts), RUN_SCATTER, RUN_SCATTER)
    freedom = sum(freedom for _, freedom in parts)
    text = f"reward {own:.4g}, the baseline's {other:.4g} (last halves, standard error {error:.2g})"
    if chance_of_more(other - own, error, freedom) <= _FALLS:
        return contradicted(TREND, f"{text}: below it", follow_up="--base REV --repeat 5 says whether it is the change")
    if chance_of_more(own - other + MARGIN, error, freedom) <= _LEVEL:
        return shown(TREND, text)
    return not_seen(TREND, f"{text}: a drop of {MARGIN:g} is not ruled out", _RERUN)


def _slope(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """The gain from the first step to the last along a line, its standard error, and degrees of freedom. Steps that
    follow each other resemble each other, and count as fewer for that."""
    steps, values = [float(step) for step, _ in points], [value for _, value in points]
    middle, mean = fmean(steps), fmean(values)
    spread = sum((step - middle) ** 2 for step in steps)
    slope = sum((step - middle) * (value - mean) for step, value in zip(steps, values, strict=True)) / spread
    rest = [value - mean - slope * (step - middle) for step, value in zip(steps, values, strict=True)]
    inflation = _inflation(rest, fitted=2)
    variance = sum(value**2 for value in rest) / (len(rest) - 2)
    length = steps[-1] - steps[0]
    error = round(math.sqrt(variance * inflation / spread) * length, 12)  # a straight line has none
    return slope * length, error, max(2.0, len(rest) / inflation - 2)


def _mean_error(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    values = [value for _, value in points]
    rest = [value - fmean(values) for value in values]
    inflation = _inflation(rest, fitted=1)
    variance = sum(value**2 for value in rest) / (len(rest) - 1)
    return math.sqrt(variance * inflation / len(rest)), max(1.0, len(rest) / inflation - 1)


def _inflation(rest: Sequence[float], fitted: int) -> float:
    """By how much the variance of a mean grows since steps resemble the one before: of an autoregressive series. What
    was fitted hides a part of the resemblance, which is put back."""
    total = sum(value**2 for value in rest)
    if not total:
        return 1.0
    count = len(rest)
    lag = sum(one * other for one, other in pairwise(rest)) / total
    lag = min(max(lag + (1 + 3 * max(lag, 0.0)) * fitted / count, 0.0), 0.9)
    return (1 + lag) / (1 - lag)


def _validation_means(metrics: Metrics) -> dict[int, float]:
    """The mean of each step's validation; empty where there are no two."""
    means = {}
    for step in sorted(metrics):
        values = [value for key, value in metrics[step].items() if _VALIDATION.search(key) and math.isfinite(value)]
        if values:
            means[step] = fmean(values)
    return means if len(means) > 1 else {}


def _validation(means: Mapping[int, float]) -> str:
    if not means:
        return ""
    first, last = min(means), max(means)
    return f"validation {means[first]:.4g} at step {first} → {means[last]:.4g} at step {last}"


def _keys(metrics: Metrics) -> set[str]:
    return {key for values in metrics.values() for key in values}


def _of(metrics: Metrics, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if key in _keys(metrics)]


def _first_of(metrics: Metrics, keys: Sequence[str]) -> str:
    return next(iter(_of(metrics, keys)), keys[0])


def _matching(metrics: Mapping[int, Mapping[str, float]], pattern: re.Pattern[str]) -> list[str]:
    return sorted(key for key in _keys(metrics) if pattern.search(key))
