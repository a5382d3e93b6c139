"""Level 5's evidence: whether metrics over a short run show a learning signal. It is never called convergence. Pure.

criterion                     contradicted by
metrics at every step         (only not seen)
validation or reward trend    a reward that falls, or is below the baseline's
no repeated zero gradients    two in a row, or every tenth step
rewards, losses, critic       the same value at each step
values, logprobs vary
stable updates                a KL above 10, an entropy that collapses; a gradient that explodes is not seen
responses end before the cap  half of the last responses have the maximal length

`bench/verl_learning.py` measures on simulated curves how often a run that learns nothing, or one that is below its
baseline, is shown to be what it is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from ci_tasks.features.verl.judge.records import SHOWN, Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.judge.training_log import Metrics
from ci_tasks.trials.student import chance_of_more

REWARD = "critic/rewards/mean"
TREND, UPDATES = "validation or reward trend", "stable updates"
ERROR = 0.05  # how often a run without a learning signal may be shown to have one
_LEVEL = 0.03  # of a single test: the correction for steps that are not independent leaves a little
_FALLS = 0.01  # of the word that rewards fall, which fails a level
MARGIN = 0.05  # reward that a candidate may lose against a baseline without being seen
RUN_SCATTER = 0.015  # standard deviation of equal trainings' rewards; one training of each cannot show it
FEWEST_FOR_CONSTANT = 3  # two equal values may be chance, with rewards of 0 or 1 above all
FEWEST_FOR_TREND = 10
FEWEST_ZEROS, MANY_ZEROS = 3, 0.1  # of gradients: a batch may have advantages that are all 0, every other one has not
SAME = 1e-9  # relative: metrics are means of float32, so learning moves them by far more
MANY_CAPPED = 0.5  # share of responses at the cap from which on rewards say more of the cap than of the policy
MOST_KL = 10.0  # nats a token: the two policies have nothing in common any more
LEAST_ENTROPY = (0.02, 0.1)  # nats a token, and the share of what it was at the beginning: less of both has collapsed
MOST_SPIKE = 1000.0  # of a gradient's norm, times what is usual: what is clipped by so much has no direction left
HALVED = 0.5  # of a reward: no scatter of a batch
VALIDATED = 1000  # answers of a validation, whose scatter is that of a share of so many; gsm8k's test set has 1,319
_REWARDS = (REWARD, "critic/score/mean")
_VALIDATION = re.compile(r"(?i)^val-core/.*(?:reward|acc|score)")
_KL = re.compile(r"(?i)(?:^|[/_])kl(?:_loss)?$|kl_penalty$")
_LOG_PROBS = re.compile(r"(?i)log_?probs?(?:/|_)?mean|probs_diff_mean|^actor/entropy$")
_RERUN = "rerun with more steps, or with --base and --repeat, which compares pairs of trainings"
_COMPARE = "compare with the base: --base REV --repeat 5"
Points = Sequence[tuple[int, float]]


def learning(
    metrics: Metrics, *, steps: int, warmup: int = 0, critic: bool = True, baseline: Metrics | None = None
) -> Iterator[Criterion]:
    """The guide's evidence list for one run of so many steps, the first of which, `warmup`, train the critic alone.
    `critic` says that there is one; `baseline` are another run's metrics to compare with. What finite metrics and
    trainable parameters show is judged at every level, not here."""
    yield _every_step(metrics, steps, warmup, critic)
    yield trend(metrics, baseline)
    yield _gradients(metrics)
    keys = sorted({key for values in metrics.values() for key in values})
    yield _varies("rewards vary", metrics, _REWARDS) or not_seen("rewards vary", "too few were logged")
    for name, wanted in (
        ("losses vary", ("actor/pg_loss", "critic/vf_loss")),
        ("critic values vary", ("critic/values/mean", "critic/vpred_mean")),
        ("logprobs vary", [key for key in keys if _LOG_PROBS.search(key)]),
    ):
        if found := _varies(name, metrics, wanted):
            yield found
    yield _stable(metrics, [key for key in keys if _KL.search(key)])
    if capped := values_of(metrics, "response_length/clip_ratio"):
        share = fmean(capped[-max(1, len(capped) // 3) :])
        text = f"{share:.0%} of the last steps' responses hit the cap"
        if share >= MANY_CAPPED:
            text += ": not strong evidence; raise the response length, then rerun"
        yield (contradicted if share >= MANY_CAPPED else shown)("responses end before the length cap", text)


def trend(metrics: Metrics, baseline: Metrics | None = None) -> Criterion:
    """Whether the reward moved up since the start, or is level with a baseline's. A validation that falls by more than
    its scatter takes the word back; that it rises shows nothing alone."""
    rewards = _rewards(metrics)
    if len(rewards) < FEWEST_FOR_TREND:
        return not_seen(TREND, f"rewards at {len(rewards)} steps are too few for a trend", "", _RERUN)
    found = _rises(rewards) if baseline is None else _against(rewards, _rewards(baseline))
    if found.outcome == SHOWN and (doubt := _doubt(metrics, [value for _, value in rewards])):
        return not_seen(TREND, f"{found.evidence}; but {doubt}", "", _COMPARE)
    return found


def series(metrics: Metrics, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, from step 1 on, where it was logged and is a number."""
    points = ((step, metrics[step].get(key, math.nan)) for step in sorted(metrics) if step > 0)
    return [(step, value) for step, value in points if math.isfinite(value)]


def values_of(metrics: Metrics, key: str) -> list[float]:
    return [value for _, value in series(metrics, key)]


def _rewards(metrics: Metrics) -> list[tuple[int, float]]:
    return next((points for key in _REWARDS if (points := series(metrics, key))), [])


# -- the trend of the reward -------------------------------------------------------------------------------------------


def _rises(rewards: Points) -> Criterion:
    gain, error, freedom = _slope(rewards)
    text = f"reward {gain:+.4g} over {len(rewards)} steps, standard error {error:.2g}"
    if chance_of_more(-gain, error, freedom) <= _FALLS:
        return contradicted(TREND, f"{text}: it falls", follow_up=_COMPARE)
    if chance_of_more(gain, error, freedom) <= _LEVEL:
        return shown(TREND, text)
    return not_seen(TREND, f"{text}: no more than its scatter", "", _RERUN)


def _against(rewards: Points, base: Points) -> Criterion:
    """Of the last halves, where both have levelled off as far as they do."""
    ours, theirs = ([value for _, value in points[len(points) // 2 :]] for points in (rewards, base))
    if min(len(ours), len(theirs)) < FEWEST_FOR_TREND // 2:
        text = f"rewards at {len(rewards)} steps, the baseline's at {len(base)}: nothing to compare"
        return not_seen(TREND, text, "", _RERUN)
    own, other = fmean(ours), fmean(theirs)
    parts = [_mean_error(values) for values in (ours, theirs)]
    error = math.hypot(*(part for part, _ in parts), RUN_SCATTER, RUN_SCATTER)
    freedom = sum(freedom for _, freedom in parts)
    text = f"reward {own:.4g}, the baseline's {other:.4g} (last halves, standard error {error:.2g})"
    if chance_of_more(other - own, error, freedom) <= _FALLS:
        return contradicted(TREND, f"{text}: below it", follow_up="--base REV --repeat 5 says whether it is the change")
    if chance_of_more(own - other + MARGIN, error, freedom) <= _LEVEL:
        return shown(TREND, text)
    return not_seen(TREND, f"{text}: a drop of {MARGIN:g} is not ruled out", "", _RERUN)


def _doubt(metrics: Metrics, rewards: Sequence[float]) -> str:
    """Why a reward that rises, or is level with a baseline's, is no learning signal."""
    size = len(rewards) // 3
    first, last = fmean(rewards[:size]), fmean(rewards[-size:])
    if last < HALVED * first:
        return f"it falls from {first:.4g} to {last:.4g}"
    if min(rewards[-size:]) >= max(rewards) - SAME:
        return f"it is saturated: {max(rewards):.4g} at the last {size} steps"
    means = [
        fmean(found)
        for _, logged in sorted(metrics.items())
        if (found := [value for name, value in logged.items() if _VALIDATION.search(name) and math.isfinite(value)])
    ]
    if len(means) < 2:
        return ""
    before, after = means[0], means[-1]
    scatter = math.sqrt(2 * max(before * (1 - before), 0.01) / VALIDATED)
    return f"validation falls from {before:.4g} to {after:.4g}" if after < before - 2 * scatter else ""


def _slope(points: Points) -> tuple[float, float, float]:
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


def _mean_error(values: Sequence[float]) -> tuple[float, float]:
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
    lag = sum(one * other for one, other in pairwise(rest)) / total
    lag = min(max(lag + (1 + 3 * max(lag, 0.0)) * fitted / len(rest), 0.0), 0.9)
    return (1 + lag) / (1 - lag)


# -- the other metrics -------------------------------------------------------------------------------------------------


def _every_step(metrics: Metrics, steps: int, warmup: int, critic: bool) -> Criterion:
    wanted: dict[str, tuple[Callable[[str], bool], int]] = {
        "actor loss": (lambda key: key.startswith("actor/") and "loss" in key, warmup),
        "reward": (lambda key: key in _REWARDS, 0),
    }
    if critic:
        wanted["critic loss"] = (lambda key: key.startswith("critic/") and "loss" in key, 0)
    logged = {
        what: (sum(any(map(fits, metrics.get(step, ()))) for step in range(first + 1, steps + 1)), steps - first)
        for what, (fits, first) in wanted.items()
    }
    text = ", ".join(f"{what} at {count} of {due} steps" for what, (count, due) in logged.items())
    if any(count < due for count, due in logged.values()):
        return not_seen("metrics at every step", text, "", "rerun with verl's console logger, and keep the whole log")
    return shown("metrics at every step", text)


def _gradients(metrics: Metrics) -> Criterion:
    name, norms = "no repeated zero gradients", values_of(metrics, "actor/grad_norm")
    if not norms:
        return not_seen(name, "actor/grad_norm was not logged")
    for key in ("actor/grad_norm", "critic/grad_norm"):
        points = series(metrics, key)
        zeros = [step for step, value in points if value == 0.0]
        in_a_row = any(one == other == 0.0 for (_, one), (_, other) in pairwise(points))
        if in_a_row or len(zeros) >= max(FEWEST_ZEROS, MANY_ZEROS * len(points)):
            steps = ", ".join(map(str, zeros[:5])) + (", …" if len(zeros) > 5 else "")
            return contradicted(name, f"{key} is 0 at steps {steps}: frozen adapters?")
    return shown(name, f"the smallest actor/grad_norm is {min(norms):.3g}")


def _varies(name: str, metrics: Metrics, keys: Iterable[str]) -> Criterion | None:
    """Whether what training moves does move; None if it was not logged often enough to say."""
    ranges = []
    for key in keys:
        values = values_of(metrics, key)
        if len(values) < FEWEST_FOR_CONSTANT:
            continue
        low, high = min(values), max(values)
        if high - low <= SAME * max(abs(low), abs(high)):
            return contradicted(name, f"{key} is {low:.4g} at all {len(values)} steps")
        ranges.append(f"{key} from {low:.4g} to {high:.4g}")
    return shown(name, "; ".join(ranges)) if ranges else None


def _stable(metrics: Metrics, kl_keys: Sequence[str]) -> Criterion:
    """Whether KL, entropy and gradients stay where a policy can still learn."""
    seen = []
    kl = [(abs(value), key, step) for key in kl_keys for step, value in series(metrics, key)]
    if kl:
        value, key, step = max(kl)
        seen.append(f"the largest KL is {key} {value:.3g} at step {step}")
        if value > MOST_KL:
            return contradicted(UPDATES, seen[-1])
    entropy = values_of(metrics, "actor/entropy")
    if len(entropy) >= FEWEST_FOR_CONSTANT:
        size = len(entropy) // 3
        first, last = fmean(entropy[:size]), fmean(entropy[-size:])
        seen.append(f"actor/entropy {first:.3g} → {last:.3g} (first and last {size} steps)")
        if last < min(LEAST_ENTROPY[0], LEAST_ENTROPY[1] * first):
            return contradicted(UPDATES, f"{seen[-1]}: it collapses")
    norms = sorted((value, step) for step, value in series(metrics, "actor/grad_norm"))
    if len(norms) >= FEWEST_FOR_CONSTANT:
        (high, step), usual = norms[-1], norms[len(norms) // 4][0]  # half of them may be high
        seen.append(f"actor/grad_norm {usual:.3g} (first quartile), at most {high:.3g} at step {step}")
        if high > MOST_SPIKE * usual > 0:
            return not_seen(UPDATES, seen[-1])
    return shown(UPDATES, "; ".join(seen)) if seen else not_seen(UPDATES, "no KL, entropy or gradient was logged")
