"""Level 5's evidence: whether metrics over a short run show a learning signal. It is never called convergence. Pure.

criterion                     contradicted by
metrics at every step         (only not seen)
validation or reward trend    a reward that falls, or is below the baseline's
no repeated zero gradients    two in a row, or every tenth step
rewards, losses, critic       the same value at each step
values, logprobs vary
stable updates                a KL above 10, an entropy that collapses (a gradient that explodes: not seen)
responses end before the cap  half of the last responses have the maximal length

`bench/verl_learning.py` measures on simulated curves how often a run that learns nothing, or one that is below its
baseline, is shown to be what it is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, linear_regression, pstdev

from ci_tasks.errors import some
from ci_tasks.features.verl.judge.records import CONTRADICTED, NOT_SEEN, SHOWN, Criterion
from ci_tasks.features.verl.judge.training_log import Metrics
from ci_tasks.trials.rules import chance_of_more

REWARD = "critic/rewards/mean"
TREND, CAP = "validation or reward trend", "responses end before the length cap"
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
MOST_SPIKE = 1000.0  # of a gradient's norm, times what is usual: what is clipped by so much has no direction left
LEAST_ENTROPY = (0.02, 0.1)  # nats a token, and the share of what it was at the beginning: less of both has collapsed
HALVED = 0.5  # of a reward: no scatter of a batch
VALIDATED = 1000  # answers of a validation, which scatter like a share of so many; gsm8k's test set has 1,319
_REWARDS = (REWARD, "critic/score/mean")
_VARY = {
    "rewards vary": _REWARDS,
    "losses vary": ("actor/pg_loss", "critic/vf_loss"),
    "critic values vary": ("critic/values/mean", "critic/vpred_mean"),
}
_VALIDATION = re.compile(r"(?i)^val-core/.*(?:reward|acc|score)")
_KL = re.compile(r"(?i)(?:^|[/_])kl(?:_loss)?$|kl_penalty$")
_LOG_PROBS = re.compile(r"(?i)log_?probs?(?:/|_)?mean|probs_diff_mean|^actor/entropy$")
_RERUN = "rerun with more steps, or with --base and --repeat, which compares pairs of trainings"


def learning(
    metrics: Metrics, steps: int, *, critic: bool = True, baseline: Metrics | None = None, unlike: str = ""
) -> Iterator[Criterion]:
    """The guide's evidence list for one run of so many steps. `critic` says that there is one; `baseline` are another
    run's metrics to compare with, `unlike` says why it is none. What finite metrics and trainable parameters show is
    judged at every level, not here."""
    keys = sorted({key for values in metrics.values() for key in values})
    yield _every_step(metrics, steps, critic)
    yield trend(metrics, baseline, unlike)
    yield _gradients(metrics)
    logprobs = [key for key in keys if _LOG_PROBS.search(key)]
    for name, wanted in {**_VARY, "logprobs vary": logprobs}.items():
        curves = {key: values for key in wanted if len(values := values_of(metrics, key)) >= FEWEST_FOR_CONSTANT}
        flat = [key for key, values in curves.items() if max(values) - min(values) <= SAME * max(map(abs, values))]
        ranges = [f"{key} from {min(values):.4g} to {max(values):.4g}" for key, values in curves.items()]
        for key in flat[:1]:
            yield Criterion(name, CONTRADICTED, f"{key} is {curves[key][0]:.4g} at all {len(curves[key])} steps")
        if ranges and not flat:
            yield Criterion(name, SHOWN, "; ".join(ranges))
        if not ranges and wanted is _REWARDS:
            yield Criterion(name, NOT_SEEN, "too few were logged")
    yield from (Criterion("stable updates", *seen) for seen in _stable(metrics, keys))
    if capped := values_of(metrics, "response_length/clip_ratio"):
        share = fmean(capped[-max(1, len(capped) // 3) :])
        text = f"{share:.0%} of the last steps' responses hit the cap"
        todo = "no strong evidence: raise the response length, then rerun"
        yield Criterion(CAP, CONTRADICTED if share >= MANY_CAPPED else SHOWN, text, "", todo)


def trend(metrics: Metrics, baseline: Metrics | None = None, unlike: str = "") -> Criterion:
    """Whether the reward moved up since the start, or is level with a baseline's. A validation that falls by more than
    its scatter takes the word back; that it rises shows nothing alone."""
    rewards = _rewards(metrics)
    base = rewards if baseline is None else _rewards(baseline)
    few = min(len(rewards), len(base))
    if unlike or few < FEWEST_FOR_TREND:
        text = f"another training is no baseline: {unlike}" if unlike else f"rewards at {few} steps show no trend"
        return Criterion(TREND, NOT_SEEN, text, "", "name the log of an equal training" if unlike else _RERUN)
    if baseline is None:
        gain, error, freedom = _slope(rewards)
        text, least, falls = f"reward {gain:+.4g} over {len(rewards)} steps", 0.0, "it falls"
    else:
        gain, error, freedom = _difference(rewards, base)
        text, least, falls = f"reward {gain:+.4g} against the baseline's last half", -MARGIN, "below it"
    text += f", standard error {error:.2g}"
    if chance_of_more(-gain, error, freedom) <= _FALLS:
        return Criterion(TREND, CONTRADICTED, f"{text}: {falls}", "", "compare with the base: --base REV --repeat 5")
    is_likely = chance_of_more(gain - least, error, freedom) <= _LEVEL
    doubt = _doubt(metrics, [value for _, value in rewards]) if is_likely else "no more than its scatter"
    return Criterion(TREND, NOT_SEEN, f"{text}; but {doubt}", "", _RERUN) if doubt else Criterion(TREND, SHOWN, text)


def series(metrics: Metrics, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, from step 1 on, if it was logged and is a number."""
    points = ((step, metrics[step].get(key, math.nan)) for step in sorted(metrics) if step > 0)
    return [(step, value) for step, value in points if math.isfinite(value)]


def values_of(metrics: Metrics, key: str) -> list[float]:
    return [value for _, value in series(metrics, key)]


def _rewards(metrics: Metrics) -> list[tuple[int, float]]:
    return next((points for key in _REWARDS if (points := series(metrics, key))), [])


def _doubt(metrics: Metrics, rewards: Sequence[float]) -> str:
    """Why a reward that rises, or is level with a baseline's, is no learning signal."""
    size = len(rewards) // 3
    first, last = fmean(rewards[:size]), fmean(rewards[-size:])
    if last < HALVED * first:
        return f"it falls from {first:.4g} to {last:.4g}"
    if min(rewards[-size:]) >= max(rewards) - SAME:
        return f"it is saturated: {max(rewards):.4g} at the last {size} steps"
    scores = (
        [value for name, value in logged.items() if _VALIDATION.search(name) and math.isfinite(value)]
        for _, logged in sorted(metrics.items())
    )
    means = [fmean(found) for found in scores if found] or [0.0]
    before, after = means[0], means[-1]
    scatter = math.sqrt(2 * max(before * (1 - before), 0.01) / VALIDATED)
    return f"validation falls from {before:.4g} to {after:.4g}" if after < before - 2 * scatter else ""


# -- of the reward's scatter: (difference, its standard error, degrees of freedom) -------------------------------------


def _slope(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """The gain from the first step to the last along a line."""
    steps, values = [float(step) for step, _ in points], [value for _, value in points]
    slope, start = linear_regression(steps, values)
    rest = [value - start - slope * step for step, value in zip(steps, values, strict=True)]
    error, freedom = _error(rest, fitted=2)
    length = steps[-1] - steps[0]
    return slope * length, round(error / pstdev(steps) * length, 12), freedom  # a straight line has none


def _difference(rewards: Sequence[tuple[int, float]], base: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Of the last halves, in which both have levelled off as far as they do."""
    ours, theirs = ([value for _, value in points[len(points) // 2 :]] for points in (rewards, base))
    parts = [_error([value - fmean(half) for value in half], fitted=1) for half in (ours, theirs)]
    error = math.hypot(*(part for part, _ in parts), RUN_SCATTER, RUN_SCATTER)
    return fmean(ours) - fmean(theirs), error, sum(freedom for _, freedom in parts)


def _error(rest: Sequence[float], fitted: int) -> tuple[float, float]:
    """The standard error of a mean with these residuals, and its degrees of freedom. Steps that follow each other
    resemble each other, and count as fewer: as in an autoregressive series. What was fitted hides a part of the
    resemblance, which is put back."""
    total, count = sum(value**2 for value in rest), len(rest)
    lag = sum(one * other for one, other in pairwise(rest)) / total if total else 0.0
    lag = min(max(lag + (1 + 3 * max(lag, 0.0)) * fitted / count, 0.0), 0.9) if total else 0.0
    inflation = (1 + lag) / (1 - lag)
    return math.sqrt(total / (count - fitted) * inflation / count), max(1.0, count / inflation - fitted)


# -- the other metrics -------------------------------------------------------------------------------------------------


def _every_step(metrics: Metrics, steps: int, critic: bool) -> Criterion:
    wanted = {"actor loss": "^actor/.*loss", "reward": "^critic/(?:rewards|score)/mean$"}
    wanted |= {"critic loss": "^critic/.*loss"} if critic else {}
    rows = [metrics.get(step, ()) for step in range(1, steps + 1)]
    logged = {what: sum(any(re.search(key, name) for name in row) for row in rows) for what, key in wanted.items()}
    text = ", ".join(f"{what} at {count} of {steps} steps" for what, count in logged.items())
    outcome = NOT_SEEN if min(logged.values()) < steps else SHOWN
    return Criterion("metrics at every step", outcome, text, "", "rerun with verl's console logger")


def _gradients(metrics: Metrics) -> Criterion:
    name, norms = "no repeated zero gradients", values_of(metrics, "actor/grad_norm")
    for key in ("actor/grad_norm", "critic/grad_norm"):
        points = series(metrics, key)
        zeros = [step for step, value in points if value == 0.0]
        in_a_row = any(one == other == 0.0 for (_, one), (_, other) in pairwise(points))
        if in_a_row or len(zeros) >= max(FEWEST_ZEROS, MANY_ZEROS * len(points)):
            text = f"{key} is 0 at steps {some(list(map(str, zeros)), 5)}: frozen adapters?"
            return Criterion(name, CONTRADICTED, text)
    text = f"the smallest actor/grad_norm is {min(norms):.3g}" if norms else "actor/grad_norm was not logged"
    return Criterion(name, SHOWN if norms else NOT_SEEN, text)


def _stable(metrics: Metrics, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Whether KL, entropy and gradients stay where a policy can still learn: outcomes with their evidence."""
    kl = ((abs(value), key, step) for key in keys if _KL.search(key) for step, value in series(metrics, key))
    for value, key, step in [max(found)] if (found := list(kl)) else ():
        yield CONTRADICTED if value > MOST_KL else SHOWN, f"the largest KL is {key} {value:.3g} at step {step}"
    entropy = values_of(metrics, "actor/entropy")
    if size := len(entropy) // FEWEST_FOR_CONSTANT:
        first, last = fmean(entropy[:size]), fmean(entropy[-size:])
        collapses = last < min(LEAST_ENTROPY[0], LEAST_ENTROPY[1] * first)
        text = f"actor/entropy {first:.3g} → {last:.3g} (first and last {size} steps)"
        yield CONTRADICTED if collapses else SHOWN, text
    norms = sorted((value, step) for step, value in series(metrics, "actor/grad_norm"))
    if len(norms) >= FEWEST_FOR_CONSTANT:
        (high, step), usual = norms[-1], norms[len(norms) // 4][0]  # half of them may be high
        text = f"actor/grad_norm {usual:.3g} (first quartile), at most {high:.3g} at step {step}"
        yield NOT_SEEN if high > MOST_SPIKE * usual > 0 else SHOWN, text
