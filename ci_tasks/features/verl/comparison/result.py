"""What a comparison of base and candidate Bridge gives: for people and for --json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.features.verl.comparison import sequential_test as test
from ci_tasks.features.verl.comparison.observed_run import BASE, CANDIDATE, ObservedRun
from ci_tasks.features.verl.comparison.sequential_test import PairScore, SequentialDecision
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, NOT_PROVEN, PASS

LEARNING_LEVEL = 5
_MOST_NAMED = 12


@dataclass(frozen=True)
class ComparedRun:
    """A training of one side. `reward` is the mean of the last half of its steps; null where there are none."""

    side: str
    pair: int
    id: str
    directory: str
    result: str
    reward: float | None
    seconds_per_step: float | None
    links: tuple[str, ...]


@dataclass(frozen=True)
class Quantity:
    """A mean over runs of each side, and the standard deviation; null where a side has none, or one alone."""

    name: str
    unit: str
    base: float | None
    base_deviation: float | None
    candidate: float | None
    candidate_deviation: float | None


@dataclass(frozen=True)
class LearningComparison:
    """`outcome` is shown, contradicted or not seen. `difference` is candidate less base in mean reward over the last
    half of the steps, with its interval of 95 % of a single look; null where it has none. `error` is the highest
    probability of a wrong `shown`, and of a wrong `contradicted`."""

    outcome: str
    why: str
    margin: float
    error: float
    difference: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LevelComparison:
    """`result` is Pass, Fail, Not proven or Blocked. `differences` are settings, images or GPUs that are not the same
    on both sides: then nothing is said of learning."""

    result: str
    exit_code: int
    sentence: str
    level: int
    base: str
    candidate: str
    verl: str
    host: str
    pairs: int
    planned: int
    differences: tuple[str, ...]
    learning: LearningComparison | None
    quantities: tuple[Quantity, ...]
    runs: tuple[ComparedRun, ...]


Pair = tuple[ObservedRun, ObservedRun]


def scores(pairs: Sequence[Pair]) -> list[PairScore]:
    """Those of the pairs whose sides have rewards over the same steps."""
    found = (test.score(base.reward, candidate.reward) for base, candidate in pairs)
    return [score for score in found if score is not None]


def differences(pairs: Sequence[Pair]) -> list[str]:
    """What is not the same on both sides of a pair, or was not seen there."""
    lines: list[str] = []
    for base, candidate in pairs:
        for training in dict.fromkeys([*base.settings, *candidate.settings]):
            ours, theirs = base.settings.get(training), candidate.settings.get(training)
            if ours is None or theirs is None:
                side = BASE if ours is None else CANDIDATE
                lines.append(f"{training}: the resolved settings of the {side} were not seen")
                continue
            lines += _unequal(training, ours, theirs)
        for role in sorted(
            base.roles.keys() & candidate.roles.keys()
        ):  # of a worker that was killed nothing may be known
            lines += _unequal(role, base.roles[role], candidate.roles[role])
        for what, one, other in (
            ("image", base.image, candidate.image),
            ("GPUs", ", ".join(base.gpus), ", ".join(candidate.gpus)),
        ):
            if one != other:
                lines.append(f"{what}: base {one or 'not seen'}, candidate {other or 'not seen'}")
    lines = list(dict.fromkeys(lines))
    more = [f"and {len(lines) - _MOST_NAMED} more"] if len(lines) > _MOST_NAMED else []
    return [*lines[:_MOST_NAMED], *more]


def _unequal(where: str, base: Mapping[str, str], candidate: Mapping[str, str]) -> list[str]:
    return [
        f"{where}: {name}: base {base.get(name, 'none')}, candidate {candidate.get(name, 'none')}"
        for name in sorted({*base, *candidate})
        if base.get(name) != candidate.get(name)
    ]


def early_end(pairs: Sequence[Pair], level: int) -> tuple[str, str] | None:
    """(result, sentence) of what ends a comparison whatever the curves say; None where nothing does."""
    for base, candidate in pairs:
        if not base.completed:
            return BLOCKED, f"pair {base.pair}: the base did not come to its end ({base.result}): {base.why}"
        if not candidate.completed:
            word = candidate.result if candidate.result in (FAIL, BLOCKED) else NOT_PROVEN
            return word, f"pair {candidate.pair}: the candidate did not come to its end, the base did: {candidate.why}"
    if named := differences(pairs):
        about = " on learning" if level == LEARNING_LEVEL else ""
        return NOT_PROVEN, f"the sides did not run alike, so there is no verdict{about}: {'; '.join(named[:3])}"
    return None


def verdict(pairs: Sequence[Pair], decision: SequentialDecision | None) -> tuple[str, str]:
    """(result, sentence). `decision` is that of the curves, None below level 5."""
    if early := early_end(pairs, LEARNING_LEVEL if decision else 0):
        return early
    if not pairs:
        return BLOCKED, "no pair came to its end"
    failed = [candidate for _, candidate in pairs if candidate.result == FAIL]
    if len(failed) == len(pairs) and not any(base.result == FAIL for base, _ in pairs):
        return FAIL, f"the candidate missed its level's criteria in every run, the base in none: {failed[0].why}"
    if decision is None:
        wrong = next((run for pair in pairs for run in pair if run.result != PASS), None)
        if wrong is not None:
            return NOT_PROVEN, f"pair {wrong.pair}: the {wrong.side} is {wrong.result}: {wrong.why}"
        return PASS, f"base and candidate passed the level in {counted(len(pairs), 'pair')}"
    word = {test.SHOWN: PASS, test.CONTRADICTED: FAIL}.get(decision.outcome, NOT_PROVEN)
    if word == PASS and failed:
        return NOT_PROVEN, f"pair {failed[0].pair}: {decision.why}, but it missed its level's criteria: {failed[0].why}"
    return word, f"{decision.why}: {difference_text(decision)} after {counted(len(pairs), 'pair')}"


def difference_text(decision: SequentialDecision) -> str:
    estimate = decision.difference
    if not decision.difference.low > float("-inf"):
        return f"{100 * estimate.mean:+.1f} points" if estimate.mean == estimate.mean else "no reward on both sides"
    return f"{100 * estimate.mean:+.1f} points (95 %: {100 * estimate.low:+.1f} to {100 * estimate.high:+.1f})"


def quantities(pairs: Sequence[Pair]) -> tuple[Quantity, ...]:
    sides = [base for base, _ in pairs], [candidate for _, candidate in pairs]
    ranks = sorted({rank for side in sides for run in side for rank in run.memory})
    return (
        _quantity("reward, last half", "", *([_last_half(run) for run in side] for side in sides)),
        _quantity("time a step", "s", *([run.step_seconds for run in side] for side in sides)),
        *(
            _quantity(f"peak memory of rank {rank}", "GiB", *([run.memory.get(rank) for run in side] for side in sides))
            for rank in ranks
        ),
    )


def compared_run(run: ObservedRun) -> ComparedRun:
    return ComparedRun(
        run.side, run.pair, run.id, run.directory, run.result, _last_half(run), run.step_seconds, run.links
    )


def _last_half(run: ObservedRun) -> float | None:
    values = [value for _, value in run.reward]
    return fmean(values[len(values) // 2 :]) if values else None


def _quantity(name: str, unit: str, base: Sequence[float | None], candidate: Sequence[float | None]) -> Quantity:
    return Quantity(name, unit, *_spread(base), *_spread(candidate))


def _spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    return (fmean(known) if known else None), (stdev(known) if len(known) > 1 else None)
