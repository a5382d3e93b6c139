"""Level 5's evidence: whether metrics over a short run show a learning signal. It is never called convergence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ci_tasks.features.verl.judge.log_records import Metrics

REWARD = "critic/rewards/mean"
TREND = "validation or reward trend"
_REWARDS = (REWARD, "critic/score/mean")
FEWEST_LOGGED = 2  # "multiple steps"
REPEATED_ZEROS = 2  # one step may have a batch whose advantages are all 0; two in a row are no accident
FEWEST_FOR_CONSTANT = 3  # two equal values may be chance, with rewards of 0 or 1 above all
SAME = 1e-9  # relative: metrics are means of float32, so learning moves them by far more
THIRD = 3  # the trend compares the first third of the steps with the last, so that one lucky batch decides nothing
CLEAR = 1.0  # standard errors by which the thirds have to differ: less is noise, and two would fail most 20-step runs
NEAR_BASELINE = 2.0  # standard errors below a baseline that are still its noise
MANY_CAPPED = 0.5  # share of responses at the cap from which on rewards say more of the cap than of the policy
_WATCHED = re.compile(r"(?i)loss|reward|score|(?:^|[/_])kl|entrop|grad_norm|log_?prob|probs_diff|advantages|returns")
_VALIDATION = re.compile(r"(?i)^val-core/.*(?:reward|acc|score)")
_PROBS_VALID = "training/rollout_probs_diff_valid"
_CAPPED = "response_length/clip_ratio"
_CRITIC_VALUES = ("critic/values/mean", "critic/vpred_mean")
_LOG_PROBS = re.compile(r"(?i)log_?probs?(?:/|_)?mean|probs_diff_mean|^actor/entropy$")


@dataclass(frozen=True)
class Criterion:
    """`ok` is None where the log does not say, and nothing asks that it should."""

    name: str
    ok: bool | None
    evidence: str


def learning(
    metrics: Metrics,
    *,
    trainable: int | None,
    peft: bool = True,
    critic: bool = True,
    baseline: Metrics | None = None,
) -> tuple[Criterion, ...]:
    """The guide's evidence list for one run. `trainable` is what the log says of trainable parameters; `peft` that
    adapters, `critic` that a critic was asked for; `baseline` another run's metrics to compare with."""
    return (
        finite(metrics),
        _trainable(trainable, peft),
        _several(metrics, critic),
        trend(metrics, baseline),
        _gradients(metrics),
        _varies("rewards vary", metrics, _of(metrics, _REWARDS)),
        _varies("critic values vary", metrics, _CRITIC_VALUES),
        _varies("logprobs vary", metrics, _matching(metrics, _LOG_PROBS)),
        capped(metrics),
    )


def finite(metrics: Metrics) -> Criterion:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    for step in sorted(metrics):
        invalid = metrics[step].get(_PROBS_VALID) == 0.0  # verl itself says NaN where it had nothing to compare
        for key, value in metrics[step].items():
            excused = invalid and "probs_diff" in key
            if _WATCHED.search(key) and not math.isfinite(value) and not excused:
                return Criterion("no NaN or inf", False, f"{key} is {value} at step {step}")
    return Criterion(
        "no NaN or inf", True, f"in {_steps(metrics)} of losses, rewards, KL, entropy, gradients, logprobs"
    )


def trend(metrics: Metrics, baseline: Metrics | None = None) -> Criterion:
    """Whether validation or reward moved up since the start, or is where a baseline's is."""
    name = TREND
    rewards = series(metrics, _first_of(metrics, _REWARDS))
    if baseline:
        return _against(name, rewards, series(baseline, _first_of(baseline, _REWARDS)))
    validation, summary = _validation(metrics)
    if len(rewards) < 2 * FEWEST_FOR_CONSTANT:
        notes = [*([summary] if summary else []), f"rewards at {len(rewards)} steps are too few for a trend"]
        return Criterion(name, validation > 0, "; ".join(notes))
    head, tail = _ends(rewards)
    change, error = fmean(tail) - fmean(head), _error(head, tail)
    ends = f"first and last {len(head)} steps, standard error {error:.2g}"
    text = f"reward {fmean(head):.4g} → {fmean(tail):.4g} ({ends})"
    worse = change < -CLEAR * error
    better = change > CLEAR * error or (validation > 0 and not worse)
    return Criterion(name, better, f"{summary}; {text}" if summary else text)


def capped(metrics: Metrics) -> Criterion:
    """Whether responses end by themselves: a run whose responses are cut off is no strong evidence."""
    name = "responses end before the length cap"
    shares = [value for _, value in series(metrics, _CAPPED)]
    if not shares:
        return Criterion(name, None, f"{_CAPPED} was not logged")
    share = fmean(shares[-max(1, len(shares) // THIRD) :])
    text = f"{share:.0%} of the last steps' responses hit the cap"
    if share >= MANY_CAPPED:
        return Criterion(name, False, f"{text}: not strong evidence; raise the response length, then rerun")
    return Criterion(name, True, text)


def series(metrics: Metrics, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, from step 1 on, where it was logged and is a number."""
    points = ((step, metrics[step].get(key, math.nan)) for step in sorted(metrics) if step > 0)
    return [(step, value) for step, value in points if math.isfinite(value)]


def _trainable(count: int | None, peft: bool) -> Criterion:
    name = "trainable parameters"
    if not peft:
        return Criterion(name, None, "PEFT was not asked for")
    if count is None:
        return Criterion(name, False, "the log does not say how many there are")
    return Criterion(name, count > 0, f"{count:,}")


def _several(metrics: Metrics, critic: bool) -> Criterion:
    predicates: dict[str, Callable[[str], bool]] = {
        "actor loss": lambda key: key.startswith("actor/") and "loss" in key,
        "reward": lambda key: key in _REWARDS,
    }
    if critic:
        predicates["critic loss"] = lambda key: key.startswith("critic/") and "loss" in key
    counts = {
        what: sum(any(map(fits, values)) for step, values in metrics.items() if step > 0)
        for what, fits in predicates.items()
    }
    text = ", ".join(f"{what} at {count} steps" for what, count in counts.items())
    return Criterion("metrics over several steps", min(counts.values()) >= FEWEST_LOGGED, text)


def _gradients(metrics: Metrics) -> Criterion:
    name = "no repeated zero gradients"
    keys = [key for key in _keys(metrics) if key.endswith("grad_norm")]
    if not any(key.startswith("actor/") for key in keys):
        return Criterion(name, False, "actor/grad_norm was not logged")
    for key in sorted(keys):
        run: list[int] = []
        for step, value in series(metrics, key):
            run = [*run, step] if value == 0.0 else []
            if len(run) >= REPEATED_ZEROS:
                return Criterion(name, False, f"{key} is 0 at steps {run[0]} and {run[1]}: frozen adapters?")
    low = min((value for _, value in series(metrics, "actor/grad_norm")), default=math.nan)
    return Criterion(name, True, f"the smallest actor/grad_norm is {low:.3g}")


def _varies(name: str, metrics: Metrics, keys: Iterable[str]) -> Criterion:
    ranges = []
    for key in keys:
        points = series(metrics, key)
        if len(points) < FEWEST_FOR_CONSTANT:
            continue
        values = [value for _, value in points]
        low, high = min(values), max(values)
        if high - low <= SAME * max(abs(low), abs(high)):
            return Criterion(name, False, f"{key} is {low:.4g} at all {len(values)} steps")
        ranges.append(f"{key} from {low:.4g} to {high:.4g}")
    return Criterion(name, True if ranges else None, "; ".join(ranges) or "not logged often enough to say")


def _against(name: str, rewards: Sequence[tuple[int, float]], base: Sequence[tuple[int, float]]) -> Criterion:
    if not rewards or not base:
        return Criterion(
            name, False, f"rewards at {len(rewards)} steps, the baseline's at {len(base)}: nothing to compare"
        )
    _, own = _ends(rewards)
    _, other = _ends(base)
    error = _error(own, other)
    text = f"reward {fmean(own):.4g}, the baseline's {fmean(other):.4g} (last thirds, standard error {error:.2g})"
    return Criterion(name, fmean(own) >= fmean(other) - NEAR_BASELINE * error, text)


def _validation(metrics: Metrics) -> tuple[float, str]:
    """The change of validation since the first one, and what to say of it; (0, "") where there are no two."""
    means = {}
    for step in sorted(metrics):
        values = [value for key, value in metrics[step].items() if _VALIDATION.search(key) and math.isfinite(value)]
        if values:
            means[step] = fmean(values)
    if len(means) < 2:
        return 0.0, ""
    first, last = min(means), max(means)
    text = f"validation {means[first]:.4g} at step {first} → {means[last]:.4g} at step {last}"
    return means[last] - means[first], text


def _ends(points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    size = max(1, len(points) // THIRD)
    values = [value for _, value in points]
    return values[:size], values[-size:]


def _error(first: Sequence[float], second: Sequence[float]) -> float:
    """The standard error of the difference of two means."""
    return math.sqrt(sum(stdev(part) ** 2 / len(part) for part in (first, second) if len(part) > 1))


def _keys(metrics: Metrics) -> set[str]:
    return {key for values in metrics.values() for key in values}


def _of(metrics: Metrics, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if key in _keys(metrics)]


def _first_of(metrics: Metrics, keys: Sequence[str]) -> str:
    return next(iter(_of(metrics, keys)), keys[0])


def _matching(metrics: Mapping[int, Mapping[str, float]], pattern: re.Pattern[str]) -> list[str]:
    return sorted(key for key in _keys(metrics) if pattern.search(key))


def _steps(metrics: Metrics) -> str:
    return f"{sum(step > 0 for step in metrics)} steps"
