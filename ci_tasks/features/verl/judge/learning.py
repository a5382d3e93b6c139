"""Level 5's evidence: whether metrics over a short run show a learning signal. It is never called convergence. Pure.

`bench/verl_learning.py` measures on simulated curves how often a run that learns nothing, or one that is below its
baseline, is shown to be what it is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from ci_tasks.features.verl.judge.training_log import Metrics
from ci_tasks.features.verl.levels.summary import Criterion, contradicted, not_seen, shown
from ci_tasks.trials.student import chance_of_more

REWARD = "critic/rewards/mean"
TREND = "validation or reward trend"
REWARDS = (REWARD, "critic/score/mean")
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
_VALIDATION = re.compile(r"(?i)^val-core/.*(?:reward|acc|score)")
_KL = re.compile(r"(?i)(?:^|[/_])kl(?:_loss)?$|kl_penalty$")
_LOG_PROBS = re.compile(r"(?i)log_?probs?(?:/|_)?mean|probs_diff_mean|^actor/entropy$")
_RERUN = "rerun with more steps, or with --base and --repeat, which compares pairs of trainings"
_COMPARE = "compare with the base: --base REV --repeat 5"
Points = Sequence[tuple[int, float]]


def learning(
    metrics: Metrics, *, steps: int, warmup: int = 0, critic: bool = True, baseline: Metrics | None = None
) -> tuple[Criterion, ...]:
    """The guide's evidence list for one run of so many steps, the first of which, `warmup`, train the critic alone.
    `critic` says that there is one; `baseline` are another run's metrics to compare with. What finite metrics and
    trainable parameters show is judged at every level, not here."""
    return (
        _every_step(metrics, steps, warmup, critic),
        trend(metrics, baseline),
        _gradients(metrics),
        *_varying(metrics),
        *_bounded(metrics),
    )


def trend(metrics: Metrics, baseline: Metrics | None = None) -> Criterion:
    """Whether the reward moved up since the start, or is where a baseline's is. A validation that falls by more than
    its scatter takes the word back; that it rises shows nothing alone."""
    rewards = _rewards(metrics)
    if len(rewards) < FEWEST_FOR_TREND:
        return not_seen(TREND, f"rewards at {len(rewards)} steps are too few for a trend", _RERUN)
    gain, error, freedom = _slope(rewards)
    text = f"reward {gain:+.4g} over {len(rewards)} steps, standard error {error:.2g}"
    falls = chance_of_more(-gain, error, freedom) <= _FALLS
    if baseline is not None:
        found = _against(rewards, _rewards(baseline))
    elif falls:
        found = contradicted(TREND, f"{text}: it falls", follow_up=_COMPARE)
    elif chance_of_more(gain, error, freedom) <= _LEVEL:
        found = shown(TREND, text)
    else:
        found = not_seen(TREND, f"{text}: no more than its scatter", _RERUN)
    if found.outcome == shown(TREND, "").outcome and (doubt := _doubt(metrics, rewards)):
        return not_seen(TREND, f"{found.evidence}; but {doubt}", _COMPARE)
    return found


def series(metrics: Metrics, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, from step 1 on, where it was logged and is a number."""
    points = ((step, metrics[step].get(key, math.nan)) for step in sorted(metrics) if step > 0)
    return [(step, value) for step, value in points if math.isfinite(value)]


def _doubt(metrics: Metrics, rewards: Points) -> str:
    """Why a reward that rises, or is level with a baseline's, is no learning signal."""
    values, size = [value for _, value in rewards], len(rewards) // 3
    first, last = fmean(values[:size]), fmean(values[-size:])
    if last < HALVED * first:
        return f"it falls from {first:.4g} to {last:.4g}"
    if min(values[-size:]) >= max(values) - SAME:
        return f"it is saturated: {max(values):.4g} at the last {size} steps"
    means = {
        step: fmean(found)
        for step, logged in sorted(metrics.items())
        if (found := [value for name, value in logged.items() if _VALIDATION.search(name) and math.isfinite(value)])
    }
    if len(means) < 2:
        return ""
    before, after = means[min(means)], means[max(means)]
    scatter = math.sqrt(2 * max(before * (1 - before), 0.01) / VALIDATED)
    said = f"validation falls from {before:.4g} to {after:.4g}"
    return said if after < before - 2 * scatter else ""


def _every_step(metrics: Metrics, steps: int, warmup: int, critic: bool) -> Criterion:
    wanted: dict[str, tuple[Callable[[str], bool], int]] = {
        "actor loss": (lambda key: key.startswith("actor/") and "loss" in key, warmup),
        "reward": (lambda key: key in REWARDS, 0),
    }
    if critic:
        wanted["critic loss"] = (lambda key: key.startswith("critic/") and "loss" in key, 0)
    logged = {
        what: (sum(any(map(fits, metrics.get(step, ()))) for step in range(first + 1, steps + 1)), steps - first)
        for what, (fits, first) in wanted.items()
    }
    text = ", ".join(f"{what} at {count} of {due} steps" for what, (count, due) in logged.items())
    if any(count < due for count, due in logged.values()):
        return not_seen("metrics at every step", text, "rerun with verl's console logger, and keep the whole log")
    return shown("metrics at every step", text)


def _gradients(metrics: Metrics) -> Criterion:
    name = "no repeated zero gradients"
    keys = sorted(key for key in _keys(metrics) if key.endswith("grad_norm"))
    if not any(key.startswith("actor/") for key in keys):
        return not_seen(name, "actor/grad_norm was not logged")
    for key in keys:
        points = series(metrics, key)
        zeros = [step for step, value in points if value == 0.0]
        in_a_row = [step for (step, one), (_, other) in pairwise(points) if one == other == 0.0]
        if in_a_row or len(zeros) >= max(FEWEST_ZEROS, MANY_ZEROS * len(points)):
            return contradicted(name, f"{key} is 0 at steps {some_steps(zeros)}: frozen adapters?")
    low = min((value for _, value in series(metrics, "actor/grad_norm")), default=math.nan)
    return shown(name, f"the smallest actor/grad_norm is {low:.3g}")


def some_steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:5])) + (", …" if len(steps) > 5 else "")


def _varying(metrics: Metrics) -> Iterator[Criterion]:
    """Whether what training moves does move: of what was logged often enough to say."""
    rewards = [key for key in REWARDS if key in _keys(metrics)]
    log_probs = sorted(key for key in _keys(metrics) if _LOG_PROBS.search(key))
    for name, keys in (
        ("rewards vary", rewards),
        ("losses vary", ("actor/pg_loss", "critic/vf_loss")),
        ("critic values vary", ("critic/values/mean", "critic/vpred_mean")),
        ("logprobs vary", log_probs),
    ):
        found = _varies(name, metrics, keys)
        if found is not None or name == "rewards vary":
            yield found or not_seen(name, "too few were logged")


def _varies(name: str, metrics: Metrics, keys: Iterable[str]) -> Criterion | None:
    ranges = []
    for key in keys:
        values = [value for _, value in series(metrics, key)]
        if len(values) < FEWEST_FOR_CONSTANT:
            continue
        low, high = min(values), max(values)
        if high - low <= SAME * max(abs(low), abs(high)):
            return contradicted(name, f"{key} is {low:.4g} at all {len(values)} steps")
        ranges.append(f"{key} from {low:.4g} to {high:.4g}")
    return shown(name, "; ".join(ranges)) if ranges else None


def _bounded(metrics: Metrics) -> Iterator[Criterion]:
    """Whether KL, entropy, gradients and response lengths stay where a policy can still learn."""
    kl = [(abs(value), key, step) for key in _keys(metrics) if _KL.search(key) for step, value in series(metrics, key)]
    if kl:
        value, key, step = max(kl)
        text, outcome = f"the largest is {key} {value:.3g} at step {step}", contradicted if value > MOST_KL else shown
        yield outcome(f"KL below {MOST_KL:g}", text)
    entropy = [value for _, value in series(metrics, "actor/entropy")]
    if len(entropy) >= FEWEST_FOR_CONSTANT:
        size = len(entropy) // 3
        first, last = fmean(entropy[:size]), fmean(entropy[-size:])
        outcome = contradicted if last < min(LEAST_ENTROPY[0], LEAST_ENTROPY[1] * first) else shown
        text = f"actor/entropy {first:.3g} → {last:.3g} (first and last {size} steps)"
        yield outcome("entropy does not collapse", text)
    norms = sorted((value, step) for step, value in series(metrics, "actor/grad_norm"))
    if len(norms) >= FEWEST_FOR_CONSTANT:
        (high, step), usual = norms[-1], norms[len(norms) // 4][0]  # half of them may be high
        text = f"actor/grad_norm {usual:.3g} (first quartile), at most {high:.3g} at step {step}"
        unstable = high > MOST_SPIKE * usual > 0
        yield not_seen("stable gradients", text) if unstable else shown("stable gradients", text)
    capped = [value for _, value in series(metrics, "response_length/clip_ratio")]
    if capped:
        share = fmean(capped[-max(1, len(capped) // 3) :])
        text = f"{share:.0%} of the last steps' responses hit the cap"
        more = ": not strong evidence; raise the response length, then rerun" if share >= MANY_CAPPED else ""
        outcome = contradicted if more else shown
        yield outcome("responses end before the length cap", text + more)


def _against(rewards: Points, base: Points) -> Criterion:
    """Of the last halves, where both have levelled off as far as they do."""
    ours, theirs = rewards[len(rewards) // 2 :], base[len(base) // 2 :]
    if min(len(ours), len(theirs)) < FEWEST_FOR_TREND // 2:
        text = f"rewards at {len(rewards)} steps, the baseline's at {len(base)}: nothing to compare"
        return not_seen(TREND, text, _RERUN)
    own, other = (fmean(value for _, value in points) for points in (ours, theirs))
    parts = [_mean_error([value for _, value in points]) for points in (ours, theirs)]
    error = math.hypot(*(part for part, _ in parts), RUN_SCATTER, RUN_SCATTER)
    freedom = sum(freedom for _, freedom in parts)
    text = f"reward {own:.4g}, the baseline's {other:.4g} (last halves, standard error {error:.2g})"
    if chance_of_more(other - own, error, freedom) <= _FALLS:
        return contradicted(TREND, f"{text}: below it", follow_up="--base REV --repeat 5 says whether it is the change")
    if chance_of_more(own - other + MARGIN, error, freedom) <= _LEVEL:
        return shown(TREND, text)
    return not_seen(TREND, f"{text}: a drop of {MARGIN:g} is not ruled out", _RERUN)


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
    count = len(rest)
    lag = sum(one * other for one, other in pairwise(rest)) / total
    lag = min(max(lag + (1 + 3 * max(lag, 0.0)) * fitted / count, 0.0), 0.9)
    return (1 + lag) / (1 - lag)


def _rewards(metrics: Metrics) -> list[tuple[int, float]]:
    return next((points for key in REWARDS if (points := series(metrics, key))), [])


def _keys(metrics: Mapping[int, Mapping[str, float]]) -> set[str]:
    return {key for values in metrics.values() for key in values}
